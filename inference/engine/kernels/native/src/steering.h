// Steering at one site: h' = h + the row's vector + the sum over the row's entries of change * scale * write, then the
// norm of h where the row keeps it. Everything in float32, cast once. A token is computed from its own values only.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.h"
#include "vectors.h"

namespace millm {

enum Normalization { kPlain, kConstantNorm, kLayerNorm, kNormalizations };
constexpr float kLayerNormEps = 1e-5f;  // SAELens adds it to the deviation

// How an SAE sees the token: x = (h - shift) * inverse; a step in x is worth scale in h.
struct View {
  float shift = 0.f, inverse = 1.f, scale = 1.f;
};

inline float sum_of_squares(const float* x, int64_t d, float shift) {
  Vec squares(0.f);
  const Vec minus(shift);
  const int64_t whole = d / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec v = load(x + i) - minus;
    squares = at::vec::fmadd(v, v, squares);
  }
  float total = sum(squares);
  for (int64_t i = whole; i < d; ++i) total += (x[i] - shift) * (x[i] - shift);
  return total;
}

inline float shifted_dot(const float* x, const float* w, int64_t d, float shift) {
  Vec one(0.f), other(0.f);
  const Vec minus(shift);
  int64_t i = 0;
  for (; i + 2 * kLanes <= d; i += 2 * kLanes) {
    one = at::vec::fmadd(load(x + i) - minus, load(w + i), one);
    other = at::vec::fmadd(load(x + i + kLanes) - minus, load(w + i + kLanes), other);
  }
  float total = sum(one + other);
  for (; i < d; ++i) total += (x[i] - shift) * w[i];
  return total;
}

inline View view_of(const float* h, int64_t d, int32_t normalization) {
  if (normalization == kPlain) return {};
  if (normalization == kConstantNorm) {
    const float scale = std::sqrt(sum_of_squares(h, d, 0.f) / static_cast<float>(d));
    return {0.f, scale > 0.f ? 1.f / scale : 1.f, scale};
  }
  double total = 0;
  for (int64_t i = 0; i < d; ++i) total += h[i];
  const float mean = static_cast<float>(total / static_cast<double>(d));
  const float scale = std::sqrt(sum_of_squares(h, d, mean) / static_cast<float>(d - 1));
  return {mean, 1.f / (scale + kLayerNormEps), scale};
}

// One thread's work space.
struct Token {
  std::vector<float> h, delta, a;
  float norm = 0.f;  // of h
  View views[kNormalizations];

  Token(int64_t d, int64_t width) : h(d), delta(d), a(width) {}

  void read(const SteeringTables& t, int64_t row, const float* given) {
    norm = std::sqrt(sum_of_squares(h.data(), t.d, 0.f));
    bool is_known[kNormalizations] = {};
    for (int32_t k = 0; k < t.counts[row]; ++k) {
      const int64_t e = t.slots[row * t.width + k];
      const float* n = t.numbers + e * kNumbers;
      const int32_t* c = t.codes + e * kCodes;
      View& view = views[c[kNormalization]];
      if (!std::exchange(is_known[c[kNormalization]], true)) view = view_of(h.data(), t.d, c[kNormalization]);
      if (c[kIsGiven]) {
        a[k] = given[e];
        continue;
      }
      const float pre = shifted_dot(h.data(), t.read + e * t.d, t.d, view.shift) * view.inverse + n[kBias];
      a[k] = pre > n[kThreshold] ? pre : 0.f;
    }
  }

  int32_t place(const SteeringTables& t, int64_t row, int32_t entry) const {
    const int32_t* first = t.slots + row * t.width;
    return static_cast<int32_t>(std::find(first, first + t.counts[row], entry) - first);
  }

  // The entry's gate, and the gate's own gate.
  bool is_open(const SteeringTables& t, int64_t row, int32_t k) const {
    for (int step = 0; step < 2; ++step) {
      const int32_t e = t.slots[row * t.width + k];
      const int32_t gate = t.codes[e * kCodes + kGate];
      const int32_t at = gate == e ? k : place(t, row, gate);
      if (!(a[at] > t.numbers[e * kNumbers + kFloor])) return false;
      if (at == k) return true;
      k = at;
    }
    return true;
  }

  // Whether anything is to be added.
  bool change(const SteeringTables& t, int64_t row) {
    bool any = (t.flags[row] & kHasVector) && norm <= t.limits[row];
    if (any)
      std::memcpy(delta.data(), t.vectors + row * t.d, t.d * sizeof(float));
    else
      std::fill(delta.begin(), delta.end(), 0.f);
    for (int32_t k = 0; k < t.counts[row]; ++k) {
      const int64_t e = t.slots[row * t.width + k];
      const float* n = t.numbers + e * kNumbers;
      const float wanted = n[kGainLessOne] * a[k] + n[kOffset];
      const float step = std::min(std::max(wanted, n[kLower] - a[k]), n[kUpper] - a[k]);
      if (step == 0.f || norm > n[kNormLimit] || !is_open(t, row, k)) continue;
      any = true;
      const Vec by(step * views[t.codes[e * kCodes + kNormalization]].scale);
      const float* w = t.write + e * t.d;
      for (int64_t i = 0; i < t.d; i += kLanes)
        store(delta.data() + i, at::vec::fmadd(by, load(w + i, t.d - i), load(delta.data() + i, t.d - i)), t.d - i);
    }
    return any;
  }

  // delta becomes h'.
  void settle(const SteeringTables& t, int64_t row) {
    for (int64_t i = 0; i < t.d; ++i) delta[i] += h[i];
    if (!(t.flags[row] & kKeepsNorm)) return;
    const float now = std::sqrt(sum_of_squares(delta.data(), t.d, 0.f));
    if (!(now > 0.f)) return;
    const float factor = norm / now;
    for (int64_t i = 0; i < t.d; ++i) delta[i] *= factor;
  }
};

inline float distance(const float* x, const float* y, int64_t d) {
  Vec squares(0.f);
  const int64_t whole = d / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vec v = load(x + i) - load(y + i);
    squares = at::vec::fmadd(v, v, squares);
  }
  float total = sum(squares);
  for (int64_t i = whole; i < d; ++i) total += (x[i] - y[i]) * (x[i] - y[i]);
  return std::sqrt(total);
}

// How far a token moved, as a share of its norm: as it was stored, so that what rounding swallows counts as nothing.
inline float relative_change(float moved, float norm) { return moved == 0.f ? 0.f : norm > 0.f ? moved / norm : 1.f; }

template <typename T>
void steer(const TensorView& hidden, const int64_t* rows, const SteeringTables& t, const float* given,
           const TensorView& out, float* changes) {
  const int64_t n = hidden.size(0), d = t.d;
  T* to = out.as<T>();
  parallel_for(0, n, std::max<int64_t>(1, 65536 / (d * (1 + t.width))), [&](int64_t begin, int64_t end) {
    Token token(d, t.width);
    for (int64_t i = begin; i < end; ++i) {
      const T* from = hidden.as<T>() + i * hidden.stride(0);
      const int64_t row = rows[i];
      std::memcpy(to + i * d, from, d * sizeof(T));
      changes[i] = 0.f;
      if (!(t.flags[row] & kActs)) continue;
      for (int64_t k = 0; k < d; k += kLanes) store(token.h.data() + k, load(from + k, d - k), d - k);
      token.read(t, row, given == nullptr ? nullptr : given + i * t.entries);
      if (!token.change(t, row)) continue;
      token.settle(t, row);
      for (int64_t k = 0; k < d; k += kLanes) store(to + i * d + k, load(token.delta.data() + k, d - k), d - k);
      if (!std::is_same_v<T, float>)
        for (int64_t k = 0; k < d; k += kLanes) store(token.delta.data() + k, load(to + i * d + k, d - k), d - k);
      changes[i] = relative_change(distance(token.delta.data(), token.h.data(), d), token.norm);
    }
  });
}

void steer_rows(const TensorView& hidden, const int64_t* rows, const SteeringTables& tables, const float* given,
                const TensorView& out, float* changes) {
  MILLM_BY_TYPE(hidden, steer<T>(hidden, rows, tables, given, out, changes));
}

}  // namespace millm
