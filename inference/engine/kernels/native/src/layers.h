// The small operations between a layer's products, each in one pass with float32 in between.
#pragma once

#include <cmath>

#include "kernels.h"
#include "vectors.h"

namespace millm {

constexpr int64_t kGrain = 16384;  // values below which another thread costs more than it saves

template <typename T>
inline float inverse_rms(const T* row, int64_t d, double eps) {
  Vec squares(0.f);
  for (int64_t i = 0; i < d; i += kLanes) {
    const Vec x = load(row + i, d - i);
    squares = at::vec::fmadd(x, x, squares);
  }
  return 1.f / std::sqrt(sum(squares) / static_cast<float>(d) + static_cast<float>(eps));
}

template <typename T>
void norm(const TensorView& x, const TensorView& weight, double eps, double offset, const TensorView& out) {
  const int64_t rows = x.size(0), d = x.size(1);
  const T *in = x.as<T>(), *w = weight.as<T>();
  T* o = out.as<T>();
  parallel_for(0, rows, std::max<int64_t>(1, kGrain / d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* row = in + r * x.stride(0);
      const Vec factor(inverse_rms(row, d, eps)), plus(static_cast<float>(offset));
      for (int64_t i = 0; i < d; i += kLanes)
        store(o + r * d + i, load(row + i, d - i) * factor * (load(w + i, d - i) + plus), d - i);
    }
  });
}

template <typename T>
void rotate(const TensorView& x, const TensorView* weight, double eps, double offset, const TensorView& cos,
            const TensorView& sin, const TensorView& out) {
  const int64_t tokens = x.size(0), heads = x.size(1), d = x.size(2), half = d / 2;
  const T* w = weight ? weight->as<T>() : nullptr;
  parallel_for(0, tokens, std::max<int64_t>(1, kGrain / (heads * d)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T *c = cos.as<T>() + t * cos.stride(0), *s = sin.as<T>() + t * sin.stride(0);
      for (int64_t h = 0; h < heads; ++h) {
        const T* row = x.as<T>() + t * x.stride(0) + h * x.stride(1);
        T* o = out.as<T>() + (t * heads + h) * d;
        const Vec factor(w ? inverse_rms(row, d, eps) : 1.f), plus(static_cast<float>(offset));
        for (int64_t i = 0; i < half; i += kLanes) {
          const int64_t left = half - i;
          Vec a = load(row + i, left), b = load(row + half + i, left);
          if (w) {
            a = a * factor * (load(w + i, left) + plus);
            b = b * factor * (load(w + half + i, left) + plus);
          }
          store(o + i, a * load(c + i, left) - b * load(s + i, left), left);
          store(o + half + i, b * load(c + half + i, left) + a * load(s + half + i, left), left);
        }
      }
    }
  });
}

struct Silu {
  static Vec of(const Vec& x) { return x / (Vec(1.f) + x.neg().exp()); }
};

struct GeluTanh {  // the approximation with tanh(sqrt(2 / pi) (x + 0.044715 x^3))
  static Vec of(const Vec& x) {
    const Vec inner = Vec(0.7978845608028654f) * (x + Vec(0.044715f) * x * x * x);
    return Vec(0.5f) * x * (Vec(1.f) + inner.tanh());
  }
};

template <typename T, typename Function>
void gate_with(const TensorView& gate, const TensorView& up, const TensorView& out) {
  const int64_t rows = gate.size(0), d = gate.size(1);
  parallel_for(0, rows * d, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t r = at / d, from = at % d, to = std::min(d, from + end - at);
      const T *g = gate.as<T>() + r * gate.stride(0), *u = up.as<T>() + r * up.stride(0);
      T* o = out.as<T>() + r * d;
      for (int64_t i = from; i < to; i += kLanes)
        store(o + i, Function::of(load(g + i, to - i)) * load(u + i, to - i), to - i);
      at += to - from;
    }
  });
}

template <typename T>
void add(const TensorView& x, const TensorView& out) {
  const int64_t rows = out.size(0), d = out.size(1);
  parallel_for(0, rows, std::max<int64_t>(1, kGrain / d), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* from = x.as<T>() + r * x.stride(0);
      T* to = out.as<T>() + r * d;
      for (int64_t i = 0; i < d; i += kLanes) store(to + i, load(to + i, d - i) + load(from + i, d - i), d - i);
    }
  });
}

void norm_rows(const TensorView& x, const TensorView& weight, double eps, double offset, const TensorView& out) {
  MILLM_BY_TYPE(x, norm<T>(x, weight, eps, offset, out));
}

void rotate_rows(const TensorView& x, const TensorView* weight, double eps, double offset, const TensorView& cos,
                 const TensorView& sin, const TensorView& out) {
  MILLM_BY_TYPE(x, rotate<T>(x, weight, eps, offset, cos, sin, out));
}

void gate_rows(const TensorView& gate, const TensorView& up, Activation activation, const TensorView& out) {
  if (activation == Activation::kSilu) {
    MILLM_BY_TYPE(gate, (gate_with<T, Silu>(gate, up, out)));
  } else {
    MILLM_BY_TYPE(gate, (gate_with<T, GeluTanh>(gate, up, out)));
  }
}

void add_rows(const TensorView& x, const TensorView& out) { MILLM_BY_TYPE(x, add<T>(x, out)); }

}  // namespace millm
