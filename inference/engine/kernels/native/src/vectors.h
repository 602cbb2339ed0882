// Rows of float32, bfloat16 or float16 as vectors of float32; at::vec picks AVX-512, AVX2, NEON or plain C++.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "tensor_view.h"

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define MILLM_BF16_DOT 1
#else
#define MILLM_BF16_DOT 0
#endif
#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define MILLM_INT8_DOT 1
#else
#define MILLM_INT8_DOT 0
#endif

namespace millm {

using Vec = at::vec::Vectorized<float>;
constexpr int64_t kLanes = Vec::size();

// Asks for the cache line at p, in the second cache. The first has buffers for few lines that are on their way: with as
// many as memory needs to be busy, loads wait.
inline void fetch_ahead(const void* p) { __builtin_prefetch(p, 0, 2); }

// The same in the first cache, for few lines that are needed soon.
inline void fetch_soon(const void* p) { __builtin_prefetch(p, 0, 3); }

// Where the next weights lie: each pass over the present ones fetches its share of them, evenly while it computes.
struct Ahead {
  const char* at = nullptr;
  int lines = 0;  // a step

  template <typename T>
  static Ahead share(const T* next, int64_t count, int64_t part, int64_t parts, int64_t steps) {
    if (next == nullptr) return {};
    const int64_t all = (count * static_cast<int64_t>(sizeof(T)) + 63) / 64, mine = (all + parts - 1) / parts;
    return {reinterpret_cast<const char*>(next) + part * mine * 64, static_cast<int>((mine + steps - 1) / steps)};
  }

  void step() {
    for (int line = 0; line < lines; ++line, at += 64) fetch_ahead(at);
  }
};

inline Vec load(const float* p) { return Vec::loadu(p); }

inline Vec load(const BFloat16* p) {
  Vec out;
  at::vec::load_fp32_from_bf16(p, out);
  return out;
}

inline Vec load(const Half* p) {
  Vec out;
  at::vec::load_fp32_from_fp16(p, out);
  return out;
}

inline Vec load(const int8_t* p) {
#if defined(CPU_CAPABILITY_AVX512)
  return Vec(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
#elif defined(CPU_CAPABILITY_AVX2)
  return Vec(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
#else
  float lanes[kLanes];
  std::copy(p, p + kLanes, lanes);
  return Vec::loadu(lanes);
#endif
}

// The first `count` lanes of a row's end, zeros behind them.
template <typename T>
inline Vec load(const T* p, int64_t count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes];
  std::fill(padded, padded + kLanes, T(0));
  std::copy(p, p + count, padded);
  return load(padded);
}

template <typename T>
inline void store(T* p, const Vec& v, int64_t count) {
  if (count >= kLanes) return at::vec::convert_from_float<T>(v, v).store(p, static_cast<int>(kLanes));
  float lanes[kLanes];
  v.store(lanes);
  for (int64_t i = 0; i < count; ++i) p[i] = static_cast<T>(lanes[i]);
}

template <>
inline void store(float* p, const Vec& v, int64_t count) {
  v.store(p, static_cast<int>(std::min(count, kLanes)));
}

#if defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
template <>
inline void store(BFloat16* p, const Vec& v, int64_t count) {
  const __mmask16 mask = count >= 16 ? 0xFFFF : static_cast<__mmask16>((1u << count) - 1);
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(v));
}
#endif

#if defined(CPU_CAPABILITY_AVX512)
// 32 numbers one after the other.
template <typename T>
inline void store_pair(T* p, __m512 first, __m512 second) {
  store(p, Vec(first), kLanes);
  store(p + kLanes, Vec(second), kLanes);
}

#if defined(__AVX512BF16__)
template <>
inline void store_pair(BFloat16* p, __m512 first, __m512 second) {
  _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
#endif

// As store_pair, where bfloat16 numbers go past the caches: a line that is written as a whole need not be read before.
// p is the start of a cache line, and _mm_sfence comes before others read.
template <typename T>
inline void stream_pair(T* p, __m512 first, __m512 second) {
  store_pair(p, first, second);
}

#if defined(__AVX512BF16__)
template <>
inline void stream_pair(BFloat16* p, __m512 first, __m512 second) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
#endif
#endif

template <typename F, int... I>
inline __attribute__((always_inline)) void unrolled(F&& f, std::integer_sequence<int, I...>) {
  (f(std::integral_constant<int, I>{}), ...);
}

// f(0) .. f(N - 1), each with a number that the compiler knows: arrays that it indexes can stay in registers.
template <int N, typename F>
inline __attribute__((always_inline)) void unrolled(F&& f) {
  unrolled(f, std::make_integer_sequence<int, N>{});
}

inline float sum(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return a + b; }, v);
}

// The order in which four_sums adds up lanes: neighbours in pairs, then the pairs, and so on.
#if defined(CPU_CAPABILITY_AVX512)
constexpr int kLaneOrder[] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};
#else
constexpr int kLaneOrder[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif
static_assert(kLanes <= 16 && (kLanes & (kLanes - 1)) == 0);

#if defined(CPU_CAPABILITY_AVX512)
// The lanes of each of four vectors, joined with one another: neighbours in pairs, then the pairs, and so on.
template <typename Join>
inline void join_lanes(const Vec& a, const Vec& b, const Vec& c, const Vec& d, const Join& join, float* out) {
  const __m512 ab = join(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = join(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all = join(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
  const __m256 half = join(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, join(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
#endif

// The sums of four vectors' lanes.
inline void four_sums(const Vec& a, const Vec& b, const Vec& c, const Vec& d, float* out) {
#if defined(CPU_CAPABILITY_AVX512)
  join_lanes(a, b, c, d, [](auto x, auto y) { return x + y; }, out);
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  const Vec* all[] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) {
    float lanes[kLanes];
    all[i]->store(lanes);
    for (int64_t width = kLanes; width > 1; width /= 2)
      for (int64_t l = 0; l < width / 2; ++l) lanes[l] = lanes[2 * l] + lanes[2 * l + 1];
    out[i] = lanes[0];
  }
#endif
}

// As one of four_sums.
inline float ordered_sum(const Vec& v) {
  float sums[4];
  four_sums(v, v, v, v, sums);
  return sums[0];
}

// Adds up COUNT vectors that come one after the other, in the order in which four_sums adds up lanes, for SIZE sums side
// by side: sum number `lane` of kLaneOrder is the lane'th that comes. With half as many, neighbours were added before.
template <int SIZE, int COUNT = kLanes>
class LaneTree {
 public:
  void add(Vec (&vectors)[SIZE]) {
    int level = 0;
    for (int64_t n = count_++; n & 1; n >>= 1, ++level)
      for (int i = 0; i < SIZE; ++i) vectors[i] = Vec::loadu(sums_[level][i]) + vectors[i];
    for (int i = 0; i < SIZE; ++i) vectors[i].store(sums_[level][i]);
  }

  // After COUNT vectors.
  Vec total(int i) const { return Vec::loadu(sums_[kLevels][i]); }

 private:
  static constexpr int kLevels = COUNT == 16 ? 4 : COUNT == 8 ? 3 : COUNT == 4 ? 2 : COUNT == 2 ? 1 : 0;
  int64_t count_ = 0;
  float sums_[kLevels + 1][SIZE][kLanes];
};

// Words of any value that begin at a cache line, or every second vector would lie in two of them.
class AlignedWords {
 public:
  explicit AlignedWords(int64_t count) : memory_(std::make_unique_for_overwrite<int32_t[]>(count + 16)) {}
  int32_t* data() const { return reinterpret_cast<int32_t*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) / 64 * 64); }

 private:
  std::unique_ptr<int32_t[]> memory_;
};

// Whether panels of `lanes` rows are full enough: at most `percent` of the rows are computed in vain.
inline bool fills_panels(int64_t rows, int64_t lanes, int64_t percent) {
  return (lanes - rows % lanes) % lanes * 100 <= rows * percent;
}

inline float largest(const Vec& v) {
  return at::vec::vec_reduce_all<float>([](Vec& a, Vec& b) { return at::vec::maximum(a, b); }, v);
}

#if defined(CPU_CAPABILITY_AVX512)
// The largest lanes of four vectors.
inline void four_largest(const Vec& a, const Vec& b, const Vec& c, const Vec& d, float* out) {
  join_lanes(a, b, c, d, [](auto x, auto y) { return x > y ? x : y; }, out);
}
#endif

// The largest absolute value of a row.
template <typename T>
inline float largest_magnitude(const T* row, int64_t count) {
  Vec top(0.f);
  for (int64_t i = 0; i < count; i += kLanes) top = at::vec::maximum(top, load(row + i, count - i).abs());
  return largest(top);
}

}  // namespace millm
