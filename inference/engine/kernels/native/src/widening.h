// How weights of 16 or 8 bits are multiplied on processors without their dot products: widened to float32 or, 8 bits, to
// 16, and what rows of activations become beside them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "vectors.h"

#if defined(CPU_CAPABILITY_AVX2) || (defined(CPU_CAPABILITY_AVX512) && defined(__AVX512BW__))
#define MILLM_INT16_PAIRS 1
#else
#define MILLM_INT16_PAIRS 0
#endif

namespace millm {

#if defined(CPU_CAPABILITY_AVX512)
using Lanes = __m512;
#elif defined(CPU_CAPABILITY_AVX2)
using Lanes = __m256;
#else
using Lanes = Vec;
#endif

// Sums of float32 products. A step takes kStep weights, the v-th kWidth of which meet as many activations.
struct FloatProducts {
  using Number = float;
  using Numbers = Lanes;
  using Sums = Lanes;
  static constexpr int64_t kWidth = kLanes;
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();  // products that one sum can take

  static Numbers read(const float* p) { return Vec::loadu(p); }
  static Sums zero() { return Vec(0.f); }
  static Sums add(const Sums& sums, const Numbers& row, const Numbers& column) {
    return at::vec::fmadd(Vec(row), Vec(column), Vec(sums));
  }
  static Vec floats(const Sums& sums) { return sums; }
};

template <typename W>
struct Widening : FloatProducts {
  static constexpr int kVectors = 1;
  static constexpr int64_t kStep = kLanes;
  static Numbers take(const W* p, int) { return load(p); }
};

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
// bfloat16 is the upper half of a float32: one shift makes floats of the even ones, two of the odd ones (a mask would
// take a register, of which AVX2 has too few).
template <>
struct Widening<BFloat16> : FloatProducts {
  static constexpr int kVectors = 2;
  static constexpr int64_t kStep = 2 * kLanes;
  static Numbers take(const BFloat16* p, int v) {
#if defined(CPU_CAPABILITY_AVX512)
    const __m512i pairs = _mm512_loadu_si512(p);
    return _mm512_castsi512_ps(v ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(pairs, 16));
#else
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v ? _mm256_srli_epi32(pairs, 16) : pairs, 16));
#endif
  }
};
#endif

#if MILLM_INT16_PAIRS
// Sums of exact products of 16-bit integers, two of which come in one instruction.
template <>
struct Widening<int8_t> {
  using Number = int16_t;
#if defined(CPU_CAPABILITY_AVX512)
  using Numbers = __m512i;
#else
  using Numbers = __m256i;
#endif
  using Sums = Numbers;
  static constexpr int kVectors = 1;
  static constexpr int64_t kWidth = 2 * kLanes;
  static constexpr int64_t kStep = kWidth;
  // A lane of 32 bits takes 258 sums of two products (32767 * 127 each).
  static constexpr int64_t kMost = 256 * kWidth;
#if defined(CPU_CAPABILITY_AVX512)
  static Numbers take(const int8_t* p, int) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Numbers read(const int16_t* p) { return _mm512_loadu_si512(p); }
  static Sums zero() { return _mm512_setzero_si512(); }
  static Sums add(const Sums& sums, const Numbers& row, const Numbers& column) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(row, column));
  }
  static Vec floats(const Sums& sums) { return _mm512_cvtepi32_ps(sums); }
#else
  static Numbers take(const int8_t* p, int) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Numbers read(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Sums zero() { return _mm256_setzero_si256(); }
  static Sums add(const Sums& sums, const Numbers& row, const Numbers& column) {
    Sums more = _mm256_add_epi32(sums, _mm256_madd_epi16(row, column));
#if defined(__GNUC__)
    __asm__ volatile("" : "+x"(more));  // or the compiler multiplies all first, and has no registers left for the sums
#endif
    return more;
  }
  static Vec floats(const Sums& sums) { return _mm256_cvtepi32_ps(sums); }
#endif
};

// kWidth floats as integers.
inline void round_to(const Vec& a, const Vec& b, int16_t* out) {
#if defined(CPU_CAPABILITY_AVX512)
  const auto half = [](const Vec& v) { return _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)); };
  _mm512_storeu_si512(out, _mm512_inserti64x4(_mm512_castsi256_si512(half(a)), half(b), 1));
#else
  const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(pairs, 0xD8));
#endif
}
#endif

// The last weights of a row, zeros behind them.
template <typename W>
struct Ending {
  W weights[Widening<W>::kStep] = {};
  Ending(const W* p, int64_t count) { std::copy(p, p + count, weights); }
};

// One row of activations as weights of type W meet them: its numbers come part by part, in the weights' order, with
// zeros behind the last up to a whole step; `scale` multiplies the sums.
template <typename T, typename W>
struct WideRow {
  using How = Widening<W>;
  const T* row;
  int64_t k;
  float scale = 1, factor = 1;

  WideRow(const T* row, int64_t k) : row(row), k(k) {
    if constexpr (!std::is_same_v<typename How::Number, float>) {
      const float most = largest_magnitude(row, k);
      factor = most > 0 ? 32767.f / most : 0.f;
      scale = most / 32767.f;
    }
  }

  // `count` numbers from `from` on.
  void put(int64_t from, int64_t count, typename How::Number* out) const {
    for (int64_t i = from; i < from + count; i += How::kStep, out += How::kStep) {
      if constexpr (!std::is_same_v<typename How::Number, float>)
        round_to(scaled(i), scaled(i + kLanes), out);
      else if constexpr (std::is_same_v<T, W>)
        widen(k - i < How::kStep ? Ending<W>(row + i, k - i).weights : row + i, out);
      else
        load(row + i, k - i).store(out);
    }
  }

 private:
  Vec scaled(int64_t i) const { return i < k ? load(row + i, k - i) * Vec(factor) : Vec(0.f); }

  static void widen(const W* p, float* out) {
    for (int v = 0; v < How::kVectors; ++v) Vec(How::take(p, v)).store(out + v * kLanes);
  }
};

// What becomes of sums: scaled, biased and rounded into row-major `out`.
template <typename T>
struct Put {
  T* out;
  int64_t n;
  const float* scales;
  const T* bias;

  // `count` columns from `first` on, of a row with a scale of its own.
  void operator()(int64_t row, float scale, int64_t first, int64_t count, const float* values) const {
    int64_t c = 0;
    if constexpr (!std::is_same_v<T, float>)
      for (; c + 2 * kLanes <= count; c += 2 * kLanes)
        at::vec::convert_from_float<T>(finished(scale, first + c, values + c),
                                       finished(scale, first + c + kLanes, values + c + kLanes))
            .store(out + row * n + first + c);
    for (; c < count; c += kLanes)
      store(out + row * n + first + c, finished(scale, first + c, values + c, count - c), count - c);
  }

 private:
  Vec finished(float scale, int64_t column, const float* values, int64_t count = kLanes) const {
    Vec some = load(values, count);
    if (scales) some = some * (Vec(scale) * load(scales + column, count));
    return bias ? some + load(bias + column, count) : some;
  }
};

}  // namespace millm
