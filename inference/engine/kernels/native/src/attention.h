// What both attentions share.
#pragma once

#include <limits>

#include "kernels.h"

namespace millm {

constexpr float kNone = -std::numeric_limits<float>::infinity();

struct Pool {
  int64_t block_stride, token_stride, head_stride;
};

inline Pool strides_of(const TensorView& pool) { return {pool.stride(0), pool.stride(1), pool.stride(2)}; }

struct Shape {
  int64_t heads, kv_heads, group, head_dim, padded, block_size;
};

}  // namespace millm
