// The named operations of a group whose names are busy: no other operation may be announced under one of these names.
//
// A name is free once its operation has been waited for, polled done, or has ended with nobody holding its handle, or
// none that will be waited for.
#pragma once

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <unordered_map>

#include "planner/operation.h"

namespace rr {

inline bool is_pending(const Operation& operation) {
  return operation.state.load(std::memory_order_acquire) == State::kPending;
}

class NamedOperations {
 public:
  void add(const OperationPtr& operation) { by_name_[operation->name] = operation; }

  // Frees the name if that can be done, after a call of end(operation), which may end the operation that has it.
  // Returns the operation that keeps the name busy; null: it is free.
  template <class End>
  const Operation* free(const std::string& name, End end) {
    const auto busy = by_name_.find(name);
    if (busy == by_name_.end()) return nullptr;
    Operation& operation = *busy->second;
    end(operation);
    if (is_pending(operation) || (busy->second.use_count() > 1 && !operation.discard)) return &operation;
    by_name_.erase(busy);
    return nullptr;
  }
  // Its operation has ended, and its result or error has been handed over.
  void give_back(const Operation& operation) {
    const auto busy = by_name_.find(operation.name);
    if (busy != by_name_.end() && busy->second.get() == &operation) by_name_.erase(busy);
  }
  // Gives back the names of operations that have ended and whose handles are gone.
  void give_back_dropped() {
    remove_if([](const OperationPtr& operation) { return !is_pending(*operation) && operation.use_count() == 1; });
  }

  bool is_any_pending() const {
    return std::any_of(by_name_.begin(), by_name_.end(), [](const auto& named) { return is_pending(*named.second); });
  }
  // fn(operation), in no order.
  template <class Fn>
  void for_each(Fn fn) const {
    for (const auto& named : by_name_) fn(named.second);
  }
  template <class Predicate>
  void remove_if(Predicate predicate) {
    for (auto named = by_name_.begin(); named != by_name_.end();) {
      named = predicate(named->second) ? by_name_.erase(named) : std::next(named);
    }
  }
  void clear() { by_name_.clear(); }

 private:
  std::unordered_map<std::string, OperationPtr> by_name_;
};

}  // namespace rr
