// Causal attention of prompts' chunks over pooled keys and values, in blocks with an online softmax.
//
// A task is one key-value head of one sequence with as many of its query rows (token x query head) as fill the vector
// lanes of a tile. Scores are computed transposed, keys down and query rows across: the softmax then runs down the
// columns without ever summing across lanes, and keys are read as they lie. Products of bfloat16 go by
// pairs where the processor has them (or by tiles: prompt_tiles.h); else 16-bit numbers are widened to float32 as they come in.
#pragma once

#include <atomic>
#include <cmath>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "decode_attention.h"
#include "prompt_tiles.h"
#include "vectors.h"

namespace millm {

constexpr int kWide = kLanes == 16 ? 4 : 2;         // vectors across a tile
constexpr int kDeep = 6;                            // rows down a tile
constexpr int64_t kQueryRows = kWide * kLanes;      // of a task
constexpr int64_t kKeyBlock = 16 * kDeep;           // keys whose scores are held at once
static_assert(kKeyBlock == kOrderedBlock);

// How a product goes over the inner dimension, by units that are multiplied in one go.
inline Vec dot(const Vec& sum, const float* left, const float* right) {
  return at::vec::fmadd(Vec(*left), Vec::loadu(right), sum);
}

#if MILLM_BF16_DOT
inline Vec dot(const Vec& sum, const uint32_t* left, const uint32_t* right) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(*left)),
                          (__m512bh)_mm512_loadu_si512(right));
}
#endif

// Unit holds kWidth values.
template <typename T>
struct FloatUnits {
  using Unit = float;
  static constexpr int64_t kWidth = 1;
  static constexpr bool kIsWidened = !std::is_same_v<T, float>;
  static Vec exp(const Vec& x) { return x.exp(); }
  // One key's weights over the query rows, and one value over its columns: as they are.
  static void pack_weights(const float* first, const float*, float* to) { Vec::loadu(first).store(to); }
  static void pack_values(const T* first, const T*, float* to) { load(first).store(to); }
};

template <typename T>
struct Inner : FloatUnits<T> {};

#if MILLM_BF16_DOT
template <>
struct Inner<BFloat16> {
  using Unit = uint32_t;
  static constexpr int64_t kWidth = 2;
  static constexpr bool kIsWidened = false;
  static Vec exp(const Vec& x) { return rounded_exp(x); }
  static void join(__m256i first, __m256i second, uint32_t* to) {
    _mm512_storeu_si512(to, _mm512_or_si512(_mm512_cvtepu16_epi32(first),
                                            _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16)));
  }
  static void pack_weights(const float* first, const float* second, uint32_t* to) {
    const __m256i low = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(first));
    join(low, second ? (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(second)) : _mm256_setzero_si256(), to);
  }
  static void pack_values(const BFloat16* first, const BFloat16* second, uint32_t* to) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
    join(low, second ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)) : _mm256_setzero_si256(), to);
  }
};
#endif

// The left factor of a product: rows of units that are adjacent, or a matrix whose rows are its columns.
template <typename Unit>
struct RowsOf {
  const Unit* const* rows;
  const Unit* operator()(int r, int64_t i) const { return rows[r] + i; }
};

template <typename Unit>
struct ColumnsOf {
  const Unit* first;
  const Unit* operator()(int r, int64_t i) const { return first + i * kQueryRows + r; }
};

// out[r][v] (+)= sum over i of left[r][i] * right[i][v], DEEP rows of V vectors.
template <int DEEP, int V, bool ADD, typename Unit, typename Left>
inline void tile(const Left& left, const Unit* right, int64_t right_stride, int64_t units, float* out,
                 int64_t out_stride) {
  Vec acc[DEEP][V];
  for (int r = 0; r < DEEP; ++r)
    for (int v = 0; v < V; ++v) acc[r][v] = ADD ? Vec::loadu(out + r * out_stride + v * kLanes) : Vec(0.f);
  for (int64_t i = 0; i < units; ++i)
    for (int r = 0; r < DEEP; ++r) {
      const Unit* one = left(r, i);
      for (int v = 0; v < V; ++v) acc[r][v] = dot(acc[r][v], one, right + i * right_stride + v * kLanes);
    }
  for (int r = 0; r < DEEP; ++r)
    for (int v = 0; v < V; ++v) acc[r][v].store(out + r * out_stride + v * kLanes);
}

// Scores of DEEP keys, each in the order of a single token's (decode_attention.h): products by lanes, which are then
// added up.
template <int DEEP, int V, typename Unit>
inline void ordered_tile(const Unit* const* keys, const Unit* queries, int64_t units, float* out) {
  constexpr int kPair = kLanes > 1 ? 2 : 1;  // lanes at once, which are added up in registers
  LaneTree<DEEP * V, kLanes / kPair> sums;
  for (int64_t p = 0; p < kLanes; p += kPair) {
    Vec acc[kPair][DEEP * V];
    for (auto& lane : acc)
      for (Vec& a : lane) a = Vec(0.f);
    for (int64_t first = 0; first < units; first += kLanes)
      unrolled<kPair>([&](auto lane) {
        const int64_t i = first + kLaneOrder[p + lane];
        for (int v = 0; v < V; ++v)
          for (int r = 0; r < DEEP; ++r)
            acc[lane][r * V + v] = dot(acc[lane][r * V + v], keys[r] + i, queries + i * kQueryRows + v * kLanes);
      });
    if constexpr (kPair > 1)
      for (int i = 0; i < DEEP * V; ++i) acc[0][i] = acc[0][i] + acc[1][i];
    sums.add(acc[0]);
  }
  for (int r = 0; r < DEEP; ++r)
    for (int v = 0; v < V; ++v) sums.total(r * V + v).store(out + r * kQueryRows + v * kLanes);
}

template <int V, typename Unit>
__attribute__((noinline)) void ordered_rows(int deep, const Unit* const* keys, const Unit* queries, int64_t units,
                                            float* out) {
  for (; deep > 0; deep -= 3, keys += 3, out += 3 * kQueryRows) {
    if (deep >= 3)
      ordered_tile<3, V>(keys, queries, units, out);
    else if (deep == 2)
      ordered_tile<2, V>(keys, queries, units, out);
    else
      ordered_tile<1, V>(keys, queries, units, out);
  }
}

template <typename Unit>
inline void ordered_any(int deep, int wide, const Unit* const* keys, const Unit* queries, int64_t units, float* out) {
  if (wide == 1) return ordered_rows<1>(deep, keys, queries, units, out);
  if constexpr (kWide > 2) {
    if (wide == 2) return ordered_rows<2>(deep, keys, queries, units, out);
    if (wide == 3) return ordered_rows<3>(deep, keys, queries, units, out);
  }
  ordered_rows<kWide>(deep, keys, queries, units, out);
}

// `tile` for `deep` <= kDeep rows and `wide` <= kWide vectors.
template <bool ADD, int V, typename Unit, typename Left>
inline void tile_rows(int deep, const Left& left, const Unit* right, int64_t right_stride, int64_t units, float* out,
                      int64_t out_stride) {
  switch (deep) {
    case 1: return tile<1, V, ADD>(left, right, right_stride, units, out, out_stride);
    case 2: return tile<2, V, ADD>(left, right, right_stride, units, out, out_stride);
    case 3: return tile<3, V, ADD>(left, right, right_stride, units, out, out_stride);
    case 4: return tile<4, V, ADD>(left, right, right_stride, units, out, out_stride);
    case 5: return tile<5, V, ADD>(left, right, right_stride, units, out, out_stride);
    default: return tile<kDeep, V, ADD>(left, right, right_stride, units, out, out_stride);
  }
}

template <bool ADD, typename Unit, typename Left>
__attribute__((noinline)) void tile_any(int deep, int wide, const Left& left, const Unit* right, int64_t right_stride,
                                        int64_t units, float* out, int64_t out_stride) {
  if (wide == 1) return tile_rows<ADD, 1>(deep, left, right, right_stride, units, out, out_stride);
  if constexpr (kWide > 2) {
    if (wide == 2) return tile_rows<ADD, 2>(deep, left, right, right_stride, units, out, out_stride);
    if (wide == 3) return tile_rows<ADD, 3>(deep, left, right, right_stride, units, out, out_stride);
  }
  tile_rows<ADD, kWide>(deep, left, right, right_stride, units, out, out_stride);
}

// Ordered: blocks of keys start at multiples of kKeyBlock, and the sums of a query have the order of a single token's
// (decode_attention.h). Keys that a query does not see add exact zeros to its sums.
template <typename T, typename Units, bool ORDERED>
class PromptWorker {
 public:
  using Unit = typename Units::Unit;

  PromptWorker(const Shape& shape, const Pool& key_pool, const Pool& value_pool, const T* keys, const T* values,
               const Scoring& how, int64_t window)
      : shape_(shape), key_pool_(key_pool), value_pool_(value_pool), keys_(keys), values_(values), how_(how),
        window_(window), units_(shape.head_dim / kInner), queries_(units_ * kQueryRows),
        scores_(kKeyBlock * kQueryRows), weights_((kKeyBlock / kInner + 1) * kQueryRows),
        packed_((kKeyBlock / kInner + 1) * shape.head_dim),
        widened_(kIsWidened ? kKeyBlock * shape.head_dim : 0), mixed_(kQueryRows * shape.head_dim),
        nothing_(ORDERED ? shape.head_dim : 0, T(0.f)) {}

  // query and out point to the step's tokens, [tokens, heads, head_dim].
  void run(const Prompt& prompt, const PromptTask& task, const T* query, int64_t token_stride, int64_t head_stride,
           T* out) {
    take_queries(prompt, task, query, token_stride, head_stride);
    const int64_t oldest = prompt.start + task.row / shape_.group;
    const int64_t newest = prompt.start + (task.row + task.rows - 1) / shape_.group;
    const int64_t from = window_ > 0 ? std::max<int64_t>(0, oldest - window_ + 1) : 0;
    for (int64_t at = ORDERED ? from / kKeyBlock * kKeyBlock : from; at <= newest; at += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, newest + 1 - at);
      find_rows(prompt, task.head, at, count, from);
      score(count);
      const bool is_cut = at + count - 1 > oldest || (window_ > 0 && at <= newest - window_);
      soften(task, at, count, is_cut);
      mix(task, count);
    }
    write(prompt, task, out);
  }

 private:
  static constexpr int64_t kInner = Units::kWidth;
  static constexpr bool kIsWidened = Units::kIsWidened;

  void take_queries(const Prompt& prompt, const PromptTask& task, const T* query, int64_t token_stride,
                    int64_t head_stride) {
    wide_ = static_cast<int>((task.rows + kLanes - 1) / kLanes);
    std::fill(queries_.begin(), queries_.end(), Unit(0));
    for (int64_t m = 0; m < task.rows; ++m) {
      const QueryRow row = row_of(prompt, task, shape_, m);
      const T* q = query + row.token * token_stride + row.head * head_stride;
      for (int64_t i = 0; i < units_; ++i)
        if constexpr (kIsWidened)
          queries_[i * kQueryRows + m] = static_cast<float>(q[i]);
        else
          std::memcpy(&queries_[i * kQueryRows + m], q + i * kInner, sizeof(Unit));
      positions_[m] = static_cast<int32_t>(row.position);
    }
    std::fill(positions_ + task.rows, positions_ + kQueryRows, positions_[task.rows - 1]);
    std::fill(maximum_, maximum_ + kQueryRows, kNone);
    std::fill(total_, total_ + kQueryRows, 0.f);
    if (how_.sinks)
      for (int64_t m = 0; m < task.rows; ++m) {
        maximum_[m] = how_.sinks[row_of(prompt, task, shape_, m).head];
        total_[m] = maximum_[m] == kNone ? 0.f : 1.f;
      }
    std::fill(mixed_.begin(), mixed_.end(), 0.f);
  }

  // Tokens before `from` may be in the cache no more: zeros stand for them.
  void find_rows(const Prompt& prompt, int64_t head, int64_t at, int64_t count, int64_t from) {
    const int64_t skipped = std::max<int64_t>(0, from - at);
    for (int64_t t = 0; t < skipped; ++t) key_rows_[t] = value_rows_[t] = nothing_.data();
    for (int64_t t = skipped; t < count; ++t) {
      const int64_t token = at + t, block = prompt.blocks[token / shape_.block_size], offset = token % shape_.block_size;
      key_rows_[t] = keys_ + block * key_pool_.block_stride + offset * key_pool_.token_stride + head * key_pool_.head_stride;
      value_rows_[t] =
          values_ + block * value_pool_.block_stride + offset * value_pool_.token_stride + head * value_pool_.head_stride;
    }
  }

  // Where a key's units lie; a block of keys serves all rows of the task, so it is widened once.
  const Unit* units_of_key(int64_t t) {
    if constexpr (kIsWidened) {
      float* to = widened_.data() + t * shape_.head_dim;
      for (int64_t i = 0; i < shape_.head_dim; i += kLanes) load(key_rows_[t] + i).store(to + i);
      return to;
    } else {
      return reinterpret_cast<const Unit*>(key_rows_[t]);
    }
  }

  void score(int64_t count) {
    for (int64_t t = 0; t < count; t += kDeep) {
      const int deep = static_cast<int>(std::min<int64_t>(kDeep, count - t));
      const Unit* rows[kDeep] = {};
      for (int r = 0; r < deep; ++r) rows[r] = units_of_key(t + r);
      if constexpr (ORDERED)
        ordered_any(deep, wide_, rows, queries_.data(), units_, scores_.data() + t * kQueryRows);
      else
        tile_any<false>(deep, wide_, RowsOf<Unit>{rows}, queries_.data(), kQueryRows, units_,
                        scores_.data() + t * kQueryRows, kQueryRows);
    }
  }

  // Scores to weights, packed for the product with the values; what was mixed before fades as the maximum rises.
  void soften(const PromptTask& task, int64_t at, int64_t count, bool is_cut) {
    for (int v = 0; v < wide_; ++v) {
      const int64_t lane = v * kLanes;
      Vec top = Vec::loadu(maximum_ + lane);
      for (int64_t t = 0; t < count; ++t) {
        float* place = scores_.data() + t * kQueryRows + lane;
        Vec s = Vec::loadu(place) * Vec(how_.scale);
        if (how_.softcap > 0) s = (s / Vec(how_.softcap)).tanh() * Vec(how_.softcap);
        s.store(place);
        if (is_cut) {
          hide(place, positions_ + lane, at + t);
          s = Vec::loadu(place);
        }
        top = at::vec::maximum(top, s);
      }
      const Vec safe = at::vec::maximum(top, Vec(kLowest));
      const Vec fade = (Vec::loadu(maximum_ + lane) - safe).exp();
      const Vec added = weigh(scores_.data() + lane, count, safe);
      at::vec::fmadd(Vec::loadu(total_ + lane), fade, added).store(total_ + lane);
      top.store(maximum_ + lane);
      fade.store(fade_ + lane);
      for (int64_t t = 0; t < count; t += kInner) {
        const float* first = scores_.data() + t * kQueryRows + lane;
        Units::pack_weights(first, t + 1 < count ? first + kQueryRows : nullptr,
                               weights_.data() + t / kInner * kQueryRows + lane);
      }
    }
    for (int64_t m = 0; m < task.rows; ++m)
      if (fade_[m] != 1.f)
        for (int64_t i = 0; i < shape_.head_dim; i += kLanes) {
          float* place = mixed_.data() + m * shape_.head_dim + i;
          (Vec::loadu(place) * Vec(fade_[m])).store(place);
        }
  }

  // Weights in place of a vector's scores of `count` keys; returns their sums.
  static Vec weigh(float* scores, int64_t count, const Vec& top) {
    constexpr int kSums = ORDERED ? kLanes : 1;
    Vec added[kSums];
    for (Vec& sum : added) sum = Vec(0.f);
    const auto weigh_key = [&](int64_t t, Vec& sum) {
      const Vec weight = Units::exp(Vec::loadu(scores + t * kQueryRows) - top);
      weight.store(scores + t * kQueryRows);
      sum = sum + weight;
    };
    int64_t t = 0;
    for (; t + kSums <= count; t += kSums)
      for (int p = 0; p < kSums; ++p) weigh_key(t + p, added[p]);
    for (int p = 0; t < count; ++t, ++p) weigh_key(t, added[p]);
    if constexpr (!ORDERED) return added[0];
    LaneTree<1> sums;
    for (int p = 0; p < kSums; ++p) {
      Vec one[] = {added[kLaneOrder[p] % kSums]};
      sums.add(one);
    }
    return sums.total(0);
  }

  // A key behind the query, or before its window, weighs nothing.
  void hide(float* scores, const int32_t* positions, int64_t token) const {
    for (int64_t lane = 0; lane < kLanes; ++lane)
      if (token > positions[lane] || (window_ > 0 && token <= positions[lane] - window_)) scores[lane] = kNone;
  }

  // The values of `count` keys by units. Returns how many these are.
  int64_t pack_values(int64_t count) {
    const int64_t d = shape_.head_dim, units = (count + kInner - 1) / kInner;
    for (int64_t u = 0; u < units; ++u) {
      const T *first = value_rows_[u * kInner], *second = u * kInner + 1 < count ? value_rows_[u * kInner + 1] : nullptr;
      for (int64_t i = 0; i < d; i += kLanes)
        Units::pack_values(first + i, second ? second + i : nullptr, packed_.data() + u * d + i);
    }
    return units;
  }

  void mix(const PromptTask& task, int64_t count) {
    const int64_t d = shape_.head_dim, units = pack_values(count);
    for (int64_t from = 0; from < d; from += kQueryRows) {
      const int wide = static_cast<int>(std::min<int64_t>(kWide, (d - from) / kLanes));
      for (int64_t m = 0; m < task.rows; m += kDeep) {
        tile_any<true>(static_cast<int>(std::min<int64_t>(kDeep, task.rows - m)), wide,
                       ColumnsOf<Unit>{weights_.data() + m}, packed_.data() + from, d, units,
                       mixed_.data() + m * d + from, d);
      }
    }
  }

  void write(const Prompt& prompt, const PromptTask& task, T* out) const {
    const int64_t d = shape_.head_dim;
    for (int64_t m = 0; m < task.rows; ++m) {
      const QueryRow row = row_of(prompt, task, shape_, m);
      T* to = out + (row.token * shape_.heads + row.head) * d;
      const Vec share(1.f / total_[m]);
      for (int64_t i = 0; i < d; i += kLanes) millm::store(to + i, Vec::loadu(mixed_.data() + m * d + i) * share, kLanes);
    }
  }

  const Shape& shape_;
  const Pool &key_pool_, &value_pool_;
  const T *keys_, *values_;
  const Scoring& how_;
  const int64_t window_, units_;
  int wide_ = 0;
  std::vector<Unit> queries_;   // [units, query rows]
  std::vector<float> scores_;   // [keys, query rows]
  std::vector<Unit> weights_;   // [keys / width, query rows]
  std::vector<Unit> packed_;    // [keys / width, head_dim]
  std::vector<float> widened_;  // [keys, head_dim]
  std::vector<float> mixed_;    // [query rows, head_dim]
  std::vector<T> nothing_;      // [head_dim]
  int32_t positions_[kQueryRows];
  float maximum_[kQueryRows], total_[kQueryRows], fade_[kQueryRows];
  const T *key_rows_[kKeyBlock], *value_rows_[kKeyBlock];
};

// Of up to `most` rows each; the longest first, so that the threads end together.
inline std::vector<PromptTask> tasks_of(const std::vector<Prompt>& prompts, const Shape& shape, int64_t most) {
  std::vector<PromptTask> tasks;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const int64_t rows = prompts[p].count * shape.group;
    for (int64_t row = 0; row < rows; row += most)
      for (int64_t head = 0; head < shape.kv_heads; ++head)
        tasks.push_back({static_cast<int64_t>(p), head, row, std::min(most, rows - row)});
  }
  const auto keys = [&](const PromptTask& t) { return prompts[t.prompt].start + (t.row + t.rows) / shape.group; };
  std::stable_sort(tasks.begin(), tasks.end(), [&](const auto& a, const auto& b) { return keys(a) > keys(b); });
  return tasks;
}

// MOST: rows of a task.
template <typename T, typename Worker>
void attend_prompts_by(int64_t most, const TensorView& query, const TensorView& keys, const TensorView& values,
                       const TensorView& table, const TensorView& starts, const TensorView& counts, const Scoring& how,
                       int64_t window, const TensorView& out) {
  const int64_t d = query.size(2);
  const Shape shape{query.size(1), keys.size(2), query.size(1) / keys.size(2), d, d, keys.size(1)};
  const Pool key_pool = strides_of(keys), value_pool = strides_of(values);
  std::vector<Prompt> prompts;
  int64_t first = 0;
  for (int64_t i = 0; i < counts.size(0); ++i) {
    const int64_t start = starts.as<int32_t>()[i], count = counts.as<int32_t>()[i];
    prompts.push_back({first, start, count, table.as<int32_t>() + i * table.stride(0)});
    first += count;
  }
  const auto tasks = tasks_of(prompts, shape, most);
  std::atomic<size_t> next{0};
  const auto work = [&](int64_t, int64_t) {
    const auto worker =
        std::make_unique<Worker>(shape, key_pool, value_pool, keys.as<T>(), values.as<T>(), how, window);
    for (size_t i = next++; i < tasks.size(); i = next++)
      worker->run(prompts[tasks[i].prompt], tasks[i], query.as<T>(), query.stride(0), query.stride(1), out.as<T>());
  };
  parallel_for(0, std::min<int64_t>(num_threads(), tasks.size()), 1, work);
}

template <typename T, typename Units, bool ORDERED>
void attend_prompts(const TensorView& query, const TensorView& keys, const TensorView& values, const TensorView& table,
                    const TensorView& starts, const TensorView& counts, const Scoring& how, int64_t window,
                    const TensorView& out) {
#if MILLM_TILES
  if constexpr (kMultipliesPairs<T>)
    if (query.size(2) % kPairColumns == 0 && has_tiles())
      return attend_prompts_by<T, TilePromptWorker>(kMostTileRows, query, keys, values, table, starts, counts, how,
                                                    window, out);
#endif
  attend_prompts_by<T, PromptWorker<T, Units, ORDERED>>(kQueryRows, query, keys, values, table, starts, counts, how,
                                                        window, out);
}

// Each token by itself, for sizes of heads that are not whole vectors.
template <typename T>
void attend_tokens(const TensorView& query, const TensorView& keys, const TensorView& values, const TensorView& table,
                   const TensorView& starts, const TensorView& counts, const Scoring& how, int64_t window,
                   const TensorView& out) {
  std::vector<std::pair<int64_t, int64_t>> tokens;  // the sequence of each, and how many tokens it sees
  for (int64_t i = 0; i < counts.size(0); ++i)
    for (int32_t t = 0; t < counts.as<int32_t>()[i]; ++t) tokens.emplace_back(i, starts.as<int32_t>()[i] + t + 1);
  const auto length = [&](int64_t i) { return tokens[i].second; };
  const auto blocks = [&](int64_t i) { return table.as<int32_t>() + tokens[i].first * table.stride(0); };
  attend_singles<T>(query, keys, values, length, blocks, how, window, out);
}

// As attend_singles.
template <typename T>
void attend_ordered(const TensorView& query, const TensorView& keys, const TensorView& values, const TensorView& table,
                    const TensorView& starts, const TensorView& counts, const Scoring& how, int64_t window,
                    const TensorView& out) {
  if constexpr (kMultipliesPairs<T>)
    if (query.size(2) % kPairColumns == 0)
      return attend_prompts<T, Inner<T>, true>(query, keys, values, table, starts, counts, how, window, out);
  if (query.size(2) % kLanes == 0)
    attend_prompts<T, FloatUnits<T>, true>(query, keys, values, table, starts, counts, how, window, out);
  else
    attend_tokens<T>(query, keys, values, table, starts, counts, how, window, out);
}

void prompt_attention(const TensorView& query, const TensorView& keys, const TensorView& values,
                      const TensorView& table, const TensorView& starts, const TensorView& counts, const Scoring& how,
                      int64_t window, bool ordered, const TensorView& out) {
  if (ordered) {
    MILLM_BY_TYPE(query, attend_ordered<T>(query, keys, values, table, starts, counts, how, window, out));
  } else {
    MILLM_BY_TYPE(query, (attend_prompts<T, Inner<T>, false>(query, keys, values, table, starts, counts, how, window, out)));
  }
}

}  // namespace millm
