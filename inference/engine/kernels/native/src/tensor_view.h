// What the kernels see of torch: tensors as pointers with sizes and strides, and its threads. torch's own headers take
// longer to compile than all kernels together, so that only operators.cpp includes them.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <stdexcept>

namespace millm {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::headeronly::ScalarType;

constexpr int64_t kMostDims = 4;

struct TensorView {
  void* data;
  ScalarType type;
  int64_t element_size, dims;
  int64_t sizes[kMostDims], strides[kMostDims];  // strides in elements

  int64_t size(int64_t dim) const { return sizes[dim]; }
  int64_t stride(int64_t dim) const { return strides[dim]; }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Calls `call`, with T as the tensor's type.
#define MILLM_BY_TYPE(tensor, call)                                 \
  switch ((tensor).type) {                                          \
    case ScalarType::Float: { using T = float; call; break; }       \
    case ScalarType::BFloat16: { using T = BFloat16; call; break; } \
    case ScalarType::Half: { using T = Half; call; break; }         \
    default: throw std::invalid_argument("no kernel for this type"); \
  }

// A function of (begin, end) that outlives the call.
class Loop {
 public:
  template <typename F>
  Loop(const F& body)
      : body_(&body), call_([](const void* f, int64_t begin, int64_t end) { (*static_cast<const F*>(f))(begin, end); }) {}

  void operator()(int64_t begin, int64_t end) const { call_(body_, begin, end); }

 private:
  const void* body_;
  void (*call_)(const void*, int64_t, int64_t);
};

// Cuts [begin, end) between torch's threads, `grain` numbers or more for each.
void parallel_for(int64_t begin, int64_t end, int64_t grain, const Loop& body);
int64_t num_threads();

}  // namespace millm
