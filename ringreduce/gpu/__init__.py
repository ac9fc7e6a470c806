"""Arrays in the memory of a GPU: how they come in, and how results go out.

Understood: __cuda_array_interface__ (version 3, with its stream), and DLPack on CUDA devices. No library is imported
here: an array is asked for what it offers, and its library, which the program has imported, for new arrays and for its
current stream. Where there is no such library (CuPy, torch), results are DeviceArrays.
"""

from ringreduce.gpu.arrays import DeviceArray
from ringreduce.gpu.operands import Operand, is_contiguous, of, writable

__all__ = ["DeviceArray", "Operand", "is_contiguous", "of", "writable"]
