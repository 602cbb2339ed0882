// What both attentions share.
#pragma once

#include <limits>
#include <type_traits>

#include "kernels.h"
#include "vectors.h"

namespace millm {

constexpr float kNone = -std::numeric_limits<float>::infinity();

constexpr float kLowest = -1e30f;  // stands for a maximum over nothing, to be subtracted safely
constexpr int64_t kOrderedBlock = 96;  // keys whose weights are added up before they join the others

// Whether queries, keys and values are multiplied by pairs; the order of these sums needs heads of whole vectors.
template <typename T>
constexpr bool kMultipliesPairs = MILLM_BF16_DOT && std::is_same_v<T, BFloat16>;
constexpr int64_t kPairColumns = 32;  // numbers in a vector of pairs

struct Pool {
  int64_t block_stride, token_stride, head_stride;
};

inline Pool strides_of(const TensorView& pool) { return {pool.stride(0), pool.stride(1), pool.stride(2)}; }

struct Shape {
  int64_t heads, kv_heads, group, head_dim, padded, block_size;
};

}  // namespace millm
