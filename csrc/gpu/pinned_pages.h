// Host memory that a GPU's work streams copy from and to: pages of their own, because pages are what is pinned.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "base/errors.h"
#include "gpu/device.h"

namespace rr {

struct FreePages {
  Device* device = nullptr;  // that has pinned them, and outlives them; null: not pinned yet
  void operator()(std::byte* memory) const noexcept {
    try {
      if (device != nullptr) device->unpin(memory);
    } catch (const Error&) {
      // A broken context has let go of everything.
    }
    if (device != nullptr && device->is_left()) return;  // still pinned, perhaps: left to the process's end
    ::operator delete[](memory, kPage);
  }
  static constexpr std::align_val_t kPage{4096};
};
using PinnedPages = std::unique_ptr<std::byte[], FreePages>;

// nbytes: a multiple of 4096.
inline PinnedPages pinned_pages(Device& device, size_t nbytes) {
  PinnedPages pages(static_cast<std::byte*>(::operator new[](nbytes, FreePages::kPage)));
  device.pin(pages.get(), nbytes);
  pages.get_deleter().device = &device;
  return pages;
}

}  // namespace rr
