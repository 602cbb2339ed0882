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

struct Prompt {  // a segment of the step: its queries are tokens start .. start + count of the sequence
  int64_t first, start, count;
  const int32_t* blocks;
};

struct PromptTask {
  int64_t prompt, head, row, rows;  // rows of the prompt's [count * group], all of one key-value head
};

struct Shape {
  int64_t heads, kv_heads, group, head_dim, padded, block_size;
};

struct QueryRow {  // the token of the step and its query head, and the token's position in the sequence
  int64_t token, head, position;
};

// Row m of a task.
inline QueryRow row_of(const Prompt& prompt, const PromptTask& task, const Shape& shape, int64_t m) {
  const int64_t token = (task.row + m) / shape.group, head = task.head * shape.group + (task.row + m) % shape.group;
  return {prompt.first + token, head, prompt.start + token};
}

// e^x of numbers up to zero, for weights that become bfloat16: 2^y by a polynomial of the fraction of y, with an error of
// three millionths of the result.
#if defined(CPU_CAPABILITY_AVX512)
inline Vec rounded_exp(const Vec& x) {
  const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 fraction = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 power = _mm512_set1_ps(0.01342656f);
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.05224268f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.24128011f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.69304486f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(power, y);
}
#else
inline Vec rounded_exp(const Vec& x) { return x.exp_u20(); }
#endif

}  // namespace millm
