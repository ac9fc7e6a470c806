# kernels.cu by nvcc into one fat binary, which image.cc embeds. Sets RR_CUDA_SOURCE, the twin that belongs to this
# build, and says which it is. Nothing of CUDA is linked: the driver is looked up at run time.
set(RR_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "GPUs with code of their own; PTX of the last is for later ones")
set(RR_CUDA_SOURCE csrc/gpu/no_cuda.cc)

# The first of CUDACXX, PATH, /usr/local/cuda, and what pip has (nvidia-cuda-nvcc: nvidia/*/bin/nvcc).
function(rr_find_nvcc result)
  if(DEFINED ENV{CUDACXX})
    set(${result} "$ENV{CUDACXX}" PARENT_SCOPE)
    return()
  endif()
  find_program(RR_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT RR_NVCC AND DEFINED Python_EXECUTABLE)
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c
              "import glob, nvidia; print(*sorted(p for d in nvidia.__path__ for p in glob.glob(d + '/*/bin/nvcc'))[-1:])"
      OUTPUT_VARIABLE pip ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(pip)
      set_property(CACHE RR_NVCC PROPERTY VALUE "${pip}")
    endif()
  endif()
  if(RR_NVCC)
    set(${result} "${RR_NVCC}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# What is wrong with compiling kernels here; empty: nothing.
function(rr_try_nvcc nvcc flags result)
  set(trial ${CMAKE_BINARY_DIR}/cuda_trial)
  string(SHA1 key "${nvcc};${flags}")
  if(NOT EXISTS ${trial}/${key})
    file(WRITE ${trial}/trial.cu "extern \"C\" __global__ void trial(int* x) { *x = 1; }\n")
    execute_process(COMMAND ${nvcc} ${flags} -o ${trial}/trial.fatbin ${trial}/trial.cu RESULT_VARIABLE code
                    OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(NOT code EQUAL 0)
      string(STRIP "${code} ${said}" said)
      set(${result} "${nvcc} does not compile: ${said}" PARENT_SCOPE)
      return()
    endif()
    file(TOUCH ${trial}/${key})
  endif()
  set(${result} "" PARENT_SCOPE)
endfunction()

if(NOT RR_CUDA)
  set(why "RR_CUDA=OFF")
elseif(RR_SANITIZE)
  set(why "a build with sanitizers; the kernels' bodies are tested on the CPU")
else()
  rr_find_nvcc(nvcc)
  if(NOT nvcc)
    set(why "no nvcc: CUDACXX, PATH, /usr/local/cuda/bin, pip's nvidia-cuda-nvcc")
  else()
    # -fmad=false: a product and a sum are rounded each, as on the CPU. Denormals are kept and divisions exact, which is
    # nvcc's way unless told otherwise.
    set(flags -std=c++17 -O3 -fmad=false -fatbin -ccbin ${CMAKE_CXX_COMPILER})
    list(GET RR_CUDA_ARCHITECTURES -1 last)
    foreach(arch IN LISTS RR_CUDA_ARCHITECTURES)
      list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
      string(APPEND targets " sm_${arch}")
    endforeach()
    list(APPEND flags -gencode arch=compute_${last},code=compute_${last})
    # A third less. CUDA 12.8 knows it too, but drivers before CUDA 12.4 (550), which run the rest of CUDA 12, cannot
    # load what is compressed so; every driver of CUDA 13 can.
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(said MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 13)
      list(APPEND flags --compress-mode=size)
    endif()
    rr_try_nvcc("${nvcc}" "${flags}" why)
  endif()
endif()

if(why)
  message(STATUS "CUDA: off (${why})")
else()
  # Registers in memory would be slow and are not wanted: ptxas says so.
  list(APPEND flags --threads 0 -I${CMAKE_SOURCE_DIR}/csrc -Xptxas -warn-spills,-warn-lmem-usage)
  if(RR_WERROR)
    list(APPEND flags -Werror all-warnings)
  endif()
  set(fatbin ${CMAKE_BINARY_DIR}/kernels.fatbin)
  file(GLOB kernel_headers CONFIGURE_DEPENDS csrc/gpu/kernels/kernel_*.h)
  add_custom_command(
    OUTPUT ${fatbin}
    COMMAND ${nvcc} ${flags} -o ${fatbin} ${CMAKE_SOURCE_DIR}/csrc/gpu/kernels/kernels.cu
    DEPENDS csrc/gpu/kernels/kernels.cu csrc/gpu/kernels/table_layout.h ${kernel_headers} csrc/gpu/kernels/kernels.cmake
    COMMENT "Compiling CUDA kernels for${targets} and PTX"
    VERBATIM)
  set(RR_CUDA_SOURCE csrc/gpu/cuda/launch/image.cc)
  set_source_files_properties(csrc/gpu/cuda/launch/image.cc PROPERTIES COMPILE_DEFINITIONS "RR_FATBIN=\"${fatbin}\""
                                                            OBJECT_DEPENDS ${fatbin})
  message(STATUS "CUDA: on (${nvcc},${targets} and PTX of compute_${last})")
endif()
