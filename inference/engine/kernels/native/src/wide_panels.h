// Products of many rows with weights of 8 bits that are widened to 16, bound by arithmetic. Rows of activations lie side
// by side in the lanes of vectors (a panel), a word of two numbers in each, so no lanes are added up, and each weight is
// widened once for all rows. With floats this gains nothing: their tiles of a few rows are as fast as multiplications are.
#pragma once

#include <vector>

#include "widening.h"

#if MILLM_INT16_PAIRS

namespace millm {

constexpr int kAtOnce = 2;          // panels
constexpr int kStripColumns = 48;   // that a thread computes together
constexpr int64_t kWords = 128;     // of a block, so that its panels and weights stay in the nearest cache
constexpr int64_t kBlock = 2 * kWords;
static_assert(kBlock * kLanes <= Widening<int8_t>::kMost * 2);  // what a lane can add up without overflow

// Columns of a tile: its sums leave registers for a word of each panel, a weight and a product.
template <int PANELS>
constexpr int kColumnsOf = (kLanes == 16 ? 24 : 12) / PANELS;

// How many rows panels need to be faster, and how much slower, in percent, tiles of a few rows are then.
constexpr int64_t kFewestPanelRows = 48, kPanelGain = 12;

inline bool prefers_wide_panels(int64_t rows) {
  return rows >= kFewestPanelRows && fills_panels(rows, kLanes, kPanelGain);
}

// Rows of x in panels: block after block, in it panel after panel, and in it word after word of kLanes rows. Lanes
// without a row have any value.
template <typename T>
struct WidePanels {
  int64_t rows, k, panels;
  std::vector<float> scales;  // of rows

  explicit WidePanels(const TensorView& x)
      : rows(x.size(0)), k(x.size(1)), panels((rows + kLanes - 1) / kLanes), scales(rows),
        words_(place(k + kBlock - 1, 0)) {
    parallel_for(0, rows, std::max<int64_t>(1, 32768 / k), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const WideRow<T, int8_t> row(x.as<T>() + r * x.stride(0), k);
        scales[r] = row.scale;
        int32_t pairs[kWords];
        for (int64_t from = 0; from < k; from += kBlock) {
          const int64_t count = std::min(kBlock, k - from);
          row.put(from, count, reinterpret_cast<int16_t*>(pairs));
          int32_t* lane = words_.data() + place(from, r / kLanes) + r % kLanes;
          for (int64_t i = 0; i < (count + 1) / 2; ++i) lane[i * kLanes] = pairs[i];
        }
      }
    });
  }

  const int32_t* block(int64_t from, int64_t panel) const { return words_.data() + place(from, panel); }

 private:
  AlignedWords words_;

  int64_t place(int64_t from, int64_t panel) const { return (from / kBlock * panels + panel) * kWords * kLanes; }
};

inline Widening<int8_t>::Numbers each_lane(const int32_t* word) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_set1_epi32(*word);
#else
  return _mm256_set1_epi32(*word);
#endif
}

// The sums of PANELS panels and as many columns as registers allow over some words of a block, which become `sums` or
// are added to them. The widened weights of a column lie kWords apart. With AHEAD, the weights there, `stride` apart for
// the columns, are fetched meanwhile.
template <int PANELS, bool AHEAD>
__attribute__((noinline)) void panels_tile(const int32_t* x, const int32_t* w, int64_t words, const int8_t* ahead,
                                           int64_t stride, bool adds, float* sums) {
  using How = Widening<int8_t>;
  constexpr int COLUMNS = kColumnsOf<PANELS>;
  constexpr int64_t kLineWords = 64 / 2;  // of the weights in a cache line
  How::Sums acc[COLUMNS][PANELS];
  unrolled<COLUMNS>([&](auto c) { unrolled<PANELS>([&](auto p) { acc[c][p] = How::zero(); }); });
  for (int64_t left = words; left > 0; left -= kLineWords) {
    if constexpr (AHEAD) {
      for (int c = 0; c < COLUMNS; ++c) fetch_ahead(ahead + c * stride);
      ahead += 64;
    }
    for (int64_t i = std::min(left, kLineWords); i > 0; --i, x += kLanes, ++w) {
      How::Numbers rows[PANELS];
      unrolled<PANELS>([&](auto p) { rows[p] = How::read(reinterpret_cast<const int16_t*>(x + p * kWords * kLanes)); });
      unrolled<COLUMNS>([&](auto c) {
        const auto column = each_lane(w + c * kWords);
        unrolled<PANELS>([&](auto p) { acc[c][p] = How::add(acc[c][p], rows[p], column); });
      });
    }
  }
  unrolled<COLUMNS>([&](auto c) {
    unrolled<PANELS>([&](auto p) {
      float* sum = sums + (c * PANELS + p) * kLanes;
      const Vec found = How::floats(acc[c][p]);
      (adds ? Vec::loadu(sum) + found : found).store(sum);
    });
  });
}

// A strip of up to kStripColumns columns of a product.
template <typename T>
class Strip {
 public:
  Strip(const WidePanels<T>& x, const int8_t* w)
      : x_(x), w_(w), widened_(kStripColumns * kWords), sums_(kStripColumns * x.panels * kLanes) {}

  // The columns from `first` on. The weights at `next` are fetched meanwhile, unless it is null.
  void multiply(int64_t first, int64_t columns, const int8_t* next, const Put<T>& put) {
    for (int64_t from = 0; from < x_.k; from += kBlock) {
      const int8_t* weights = w_ + first * x_.k + from;
      widen(weights, columns, std::min(kBlock, x_.k - from));
      const int8_t* ahead = from + kBlock < x_.k ? weights + kBlock : next;
      for (int64_t panel = 0; panel < x_.panels; panel += kAtOnce, ahead = nullptr) {
        if (panel + 1 < x_.panels)
          tiles<kAtOnce>(panel, columns, from, ahead);
        else
          tiles<1>(panel, columns, from, ahead);
      }
    }
    float line[kStripColumns];
    for (int64_t row = 0; row < x_.rows; ++row) {
      const int64_t panel = row / kLanes, start = panel / kAtOnce * kAtOnce;
      const int64_t together = std::min<int64_t>(kAtOnce, x_.panels - start);
      const float* sums = sums_of(start) + (panel - start) * kLanes + row % kLanes;
      for (int64_t c = 0; c < columns; ++c) line[c] = sums[c * together * kLanes];
      put(row, x_.scales[row], first, columns, line);
    }
  }

 private:
  void widen(const int8_t* weights, int64_t columns, int64_t count) {
    using How = Widening<int8_t>;
    for (int64_t c = 0; c < columns; ++c, weights += x_.k)
      for (int64_t i = 0; i < count; i += How::kStep) {
        const int8_t* at = weights + i;
        const auto numbers = How::take(count - i < How::kStep ? Ending<int8_t>(at, count - i).weights : at, 0);
        std::memcpy(widened_.data() + c * kWords + i / 2, &numbers, sizeof(numbers));
      }
  }

  template <int PANELS>
  void tiles(int64_t panel, int64_t columns, int64_t from, const int8_t* ahead) {
    const int64_t words = (std::min(kBlock, x_.k - from) + 1) / 2;
    const int32_t *x = x_.block(from, panel), *w = widened_.data();
    float* sums = sums_of(panel);
    for (int64_t c = 0; c < columns; c += kColumnsOf<PANELS>) {
      if (ahead != nullptr)
        panels_tile<PANELS, true>(x, w, words, ahead + c * x_.k, x_.k, from > 0, sums);
      else
        panels_tile<PANELS, false>(x, w, words, nullptr, 0, from > 0, sums);
      w += kColumnsOf<PANELS> * kWords;
      sums += kColumnsOf<PANELS> * PANELS * kLanes;
    }
  }

  float* sums_of(int64_t panel) { return sums_.data() + panel * kLanes * kStripColumns; }

  const WidePanels<T>& x_;
  const int8_t* w_;
  std::vector<int32_t> widened_;
  std::vector<float> sums_;
};

template <typename T>
void multiply_wide_panels(const TensorView& x, const TensorView& w, const Put<T>& put) {
  const int64_t k = w.size(1), n = w.size(0);
  const WidePanels<T> panels(x);
  const int8_t* weights = w.as<int8_t>();
  parallel_for(0, (n + kStripColumns - 1) / kStripColumns, 1, [&](int64_t begin, int64_t end) {
    Strip<T> strip(panels, weights);
    for (int64_t s = begin; s < end; ++s) {
      const int64_t first = s * kStripColumns, columns = std::min<int64_t>(kStripColumns, n - first);
      strip.multiply(first, columns, s + 1 < end ? weights + (first + columns) * k : nullptr, put);
    }
  });
}

}  // namespace millm

#endif
