// Decode attention over pooled keys and values: one query a sequence, one pass over its tokens (online softmax).
//
// All visible tokens of all sequences form one line that is cut evenly between the threads, so a single long
// sequence is shared as well as many short ones. Each cut leaves (maximum, sum, weighted values) per head; pieces of
// a sequence are joined at the end. Keys and values are read once per key-value head, for all query heads of it.
#pragma once

#include <atomic>
#include <cmath>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "tiles.h"
#include "vectors.h"

namespace millm {

constexpr int64_t kTile = 32;  // tokens whose scores are held at once

struct Piece {  // tokens [begin, end) of one sequence, done by one thread
  int64_t sequence, begin, end;
};

// Cut the line of all tokens into one stretch a thread.
inline std::vector<std::vector<Piece>> share_out(const int32_t* lengths, int64_t n, int64_t window, int64_t threads) {
  auto first = [&](int64_t i) { return window > 0 ? std::max<int64_t>(0, lengths[i] - window) : 0; };
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += lengths[i] - first(i);
  threads = std::max<int64_t>(1, std::min(threads, total / (2 * kTile)));
  const int64_t share = (total + threads - 1) / threads;
  std::vector<std::vector<Piece>> shares(1);
  int64_t room = share;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t at = first(i); at < lengths[i];) {
      if (room == 0) {
        shares.emplace_back();
        room = share;
      }
      const int64_t end = std::min<int64_t>(lengths[i], at + room);
      shares.back().push_back({i, at, end});
      room -= end - at;
      at = end;
    }
  }
  return shares;
}

// GROUP query heads against `count` keys, head_dim in registers of NV vectors at a time.
template <typename T, int GROUP, bool TAIL>
inline void score_tile(const float* query, const T* keys, const T* ahead, int64_t stride, int64_t count,
                       const Shape& shape, float* scores) {
  const int64_t d = shape.head_dim;
  for (int64_t t = 0; t < count; ++t) {
    const T* row = keys + t * stride;
    const char* next = reinterpret_cast<const char*>(ahead + t * stride);
    for (int64_t byte = 0; byte < d * static_cast<int64_t>(sizeof(T)); byte += 64) fetch_soon(next + byte);
    Vec even[GROUP], odd[GROUP];
    for (int g = 0; g < GROUP; ++g) even[g] = odd[g] = Vec(0.f);
    int64_t i = 0;
    for (; i + 2 * kLanes <= d; i += 2 * kLanes) {
      const Vec a = load(row + i), b = load(row + i + kLanes);
      for (int g = 0; g < GROUP; ++g) {
        even[g] = at::vec::fmadd(Vec::loadu(query + g * shape.padded + i), a, even[g]);
        odd[g] = at::vec::fmadd(Vec::loadu(query + g * shape.padded + i + kLanes), b, odd[g]);
      }
    }
    for (; i < d; i += kLanes) {
      const Vec a = TAIL ? load(row + i, d - i) : load(row + i);
      for (int g = 0; g < GROUP; ++g)
        even[g] = at::vec::fmadd(Vec::loadu(query + g * shape.padded + i), a, even[g]);
    }
    for (int g = 0; g < GROUP; ++g) scores[g * kTile + t] = sum(even[g] + odd[g]);
  }
}

#if MILLM_BF16_DOT

// As score_tile, for bfloat16 and head sizes of whole vectors: products of pairs, four tokens at a time.
template <int GROUP>
inline void score_pairs(const BFloat16* query, int64_t query_stride, const BFloat16* keys, const BFloat16* ahead,
                        int64_t stride, int64_t count, int64_t d, float* scores) {
  for (int64_t t = 0; t < count; t += 4) {
    const BFloat16* rows[4];
    for (int j = 0; j < 4; ++j) rows[j] = keys + std::min(t + j, count - 1) * stride;
    __m512 acc[GROUP][4];
    for (auto& group : acc)
      for (auto& a : group) a = _mm512_setzero_ps();
    for (int64_t i = 0; i < d; i += 32) {
      __m512bh key[4];
      for (int j = 0; j < 4; ++j) {
        fetch_soon(ahead + (t + j) * stride + i);
        key[j] = (__m512bh)_mm512_loadu_si512(rows[j] + i);
      }
      for (int g = 0; g < GROUP; ++g) {
        const __m512bh q = (__m512bh)_mm512_loadu_si512(query + g * query_stride + i);
        for (int j = 0; j < 4; ++j) acc[g][j] = _mm512_dpbf16_ps(acc[g][j], q, key[j]);
      }
    }
    for (int g = 0; g < GROUP; ++g)
      four_sums(acc[g][0], acc[g][1], acc[g][2], acc[g][3], scores + g * kTile + t);
  }
}

// The sums of the first or second 16 of 32 columns. Of each quarter of the columns, `front` has four and `back` has four.
inline __m512 in_columns(__m512 front, __m512 back, int half) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  return _mm512_permutex2var_ps(front, half ? _mm512_add_epi32(first, _mm512_set1_epi32(8)) : first, back);
}

// sums += the values of two tokens times their weights, for CHUNKS times 32 columns. pairs[g * stride] has the weights of
// head g.
template <int GROUP, int CHUNKS>
inline __attribute__((always_inline)) void add_pair(const BFloat16* even, const BFloat16* odd, const int32_t* pairs,
                                                    int64_t stride, __m512 (&sums)[GROUP][2 * CHUNKS]) {
  for (int c = 0; c < CHUNKS; ++c) {
    const __m512i a = _mm512_loadu_si512(even + 32 * c), b = _mm512_loadu_si512(odd + 32 * c);
    const __m512bh front = (__m512bh)_mm512_unpacklo_epi16(a, b), back = (__m512bh)_mm512_unpackhi_epi16(a, b);
    for (int g = 0; g < GROUP; ++g) {
      const __m512bh weight = (__m512bh)_mm512_set1_epi32(pairs[g * stride]);
      sums[g][2 * c] = _mm512_dpbf16_ps(sums[g][2 * c], front, weight);
      sums[g][2 * c + 1] = _mm512_dpbf16_ps(sums[g][2 * c + 1], back, weight);
    }
  }
}

// acc[g] = fade[g] * acc[g] + sum over the tile of weight[g][t] * values[t], for CHUNKS times 32 columns: products of
// pairs of tokens, so the weights are bfloat16. pairs[g][t / 2] has those of tokens t and t + 1.
template <int GROUP, int CHUNKS>
inline void mix_pairs(float* acc, int64_t padded, const float* fade, const int32_t (*pairs)[kTile / 2],
                      const BFloat16* values, const BFloat16* ahead, int64_t stride, int64_t count) {
  __m512 sums[GROUP][2 * CHUNKS];
  for (auto& group : sums)
    for (auto& s : group) s = _mm512_setzero_ps();
  for (int64_t t = 0; t < count; t += 2) {
    const BFloat16 *even = values + t * stride, *odd = values + std::min(t + 1, count - 1) * stride;
    for (int c = 0; c < CHUNKS; ++c) {
      fetch_soon(ahead + t * stride + 32 * c);
      fetch_soon(ahead + (t + 1) * stride + 32 * c);
    }
    add_pair<GROUP, CHUNKS>(even, odd, pairs[0] + t / 2, kTile / 2, sums);
  }
  for (int g = 0; g < GROUP; ++g)
    for (int c = 0; c < CHUNKS; ++c)
      for (int half = 0; half < 2; ++half) {
        float* at = acc + g * padded + 32 * c + 16 * half;
        const __m512 added = in_columns(sums[g][2 * c], sums[g][2 * c + 1], half);
        _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), _mm512_set1_ps(fade[g]), added));
      }
}

template <int GROUP>
inline void mix_pairs_of_tile(float* acc, int64_t padded, const float* fade, const float* weights,
                              const BFloat16* values, const BFloat16* ahead, int64_t stride, int64_t count, int64_t d) {
  constexpr int kChunks = GROUP <= 2 ? 4 : 2;  // so that the sums fit the registers
  alignas(64) int32_t pairs[GROUP][kTile / 2];
  for (int g = 0; g < GROUP; ++g) {
    const float* w = weights + g * kTile;
    _mm512_store_si512(pairs[g], (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(w + 16), _mm512_loadu_ps(w)));
  }
  int64_t from = 0;
  for (; from + 32 * kChunks <= d; from += 32 * kChunks)
    mix_pairs<GROUP, kChunks>(acc + from, padded, fade, pairs, values + from, ahead + from, stride, count);
  for (; from < d; from += 32)
    mix_pairs<GROUP, 1>(acc + from, padded, fade, pairs, values + from, ahead + from, stride, count);
}

#endif

// acc[g] += sum over the tile of weight[g][t] * values[t].
template <typename T, int GROUP, int NV, bool TAIL>
inline void mix_columns(float* acc, const float* weights, const T* values, const T* ahead, int64_t stride,
                        int64_t count, int64_t from, const Shape& shape) {
  Vec sums[GROUP][NV];
  for (int g = 0; g < GROUP; ++g)
    for (int v = 0; v < NV; ++v) sums[g][v] = Vec::loadu(acc + g * shape.padded + from + v * kLanes);
  for (int64_t t = 0; t < count; ++t) {
    const T* row = values + t * stride + from;
    const char* next = reinterpret_cast<const char*>(ahead + t * stride + from);
    for (int64_t byte = 0; byte < NV * kLanes * static_cast<int64_t>(sizeof(T)); byte += 64)
      fetch_soon(next + byte);
    for (int v = 0; v < NV; ++v) {
      const Vec value = TAIL ? load(row + v * kLanes, shape.head_dim - from - v * kLanes) : load(row + v * kLanes);
      for (int g = 0; g < GROUP; ++g) sums[g][v] = at::vec::fmadd(Vec(weights[g * kTile + t]), value, sums[g][v]);
    }
  }
  for (int g = 0; g < GROUP; ++g)
    for (int v = 0; v < NV; ++v) sums[g][v].store(acc + g * shape.padded + from + v * kLanes);
}

template <typename T, int GROUP, bool TAIL>
inline void mix_tile(float* acc, const float* weights, const T* values, const T* ahead, int64_t stride, int64_t count,
                     const Shape& shape) {
  constexpr int kWide = kLanes == 16 ? 8 : 4;
  int64_t from = 0;
  for (; from + kWide * kLanes <= shape.head_dim; from += kWide * kLanes)
    mix_columns<T, GROUP, kWide, false>(acc, weights, values, ahead, stride, count, from, shape);
  for (; from < shape.head_dim; from += kLanes)
    mix_columns<T, GROUP, 1, TAIL>(acc, weights, values, ahead, stride, count, from, shape);
}

// Scores to weights. Returns the factor of what came before, which is below 1 when the maximum rises. Lanes behind
// `count` become zero. ROUNDED: the weights will be rounded to 16 bits, so their last bits may differ.
template <bool ROUNDED>
__attribute__((noinline)) float soften(float* scores, int64_t count, const Scoring& how, float& maximum, float& total) {
  for (int64_t t = count; t < kTile; ++t) scores[t] = kNone;
  Vec top(kNone);
  for (int64_t t = 0; t < kTile; t += kLanes) {
    Vec s = Vec::loadu(scores + t) * Vec(how.scale);
    if (how.softcap > 0) s = (s / Vec(how.softcap)).tanh() * Vec(how.softcap);
    if (how.softcap > 0 && t + kLanes > count)  // tanh made the lanes behind the end finite
      s = Vec::set(Vec(kNone), s, std::max<int64_t>(0, count - t));
    s.store(scores + t);
    top = at::vec::maximum(top, s);
  }
  const float raised = std::max(maximum, largest(top));
  Vec added(0.f);
  for (int64_t t = 0; t < kTile; t += kLanes) {
    const Vec below = Vec::loadu(scores + t) - Vec(raised), weight = ROUNDED ? rounded_exp(below) : below.exp();
    weight.store(scores + t);
    added = added + weight;
  }
  const float fade = raised == maximum ? 1.f : std::exp(maximum - raised);
  total = std::fma(total, fade, sum(added));
  maximum = raised;
  return fade;
}

template <typename T, bool TAIL>
struct Worker {
  const Shape& shape;
  const Pool& key_pool;
  const Pool& value_pool;
  const T* keys;
  const T* values;
  const Scoring& how;

  static constexpr bool kHasPairs = kMultipliesPairs<T> && !TAIL;
  static constexpr int kMostHeads = kHasPairs ? 4 : 2;  // at once

  template <int GROUP>
  void heads(const T* raw, int64_t raw_stride, const float* query, const T* k, const T* k_ahead, const T* v,
             const T* v_ahead, int64_t count, float* maximum, float* total, float* acc) const {
    float scores[GROUP * kTile], fade[GROUP];
#if MILLM_BF16_DOT
    if constexpr (kHasPairs)
      if (shape.head_dim % kPairColumns == 0) {
        score_pairs<GROUP>(raw, raw_stride, k, k_ahead, key_pool.token_stride, count, shape.head_dim, scores);
        for (int g = 0; g < GROUP; ++g)
          fade[g] = soften<true>(scores + g * kTile, count, how, maximum[g], total[g]);
        return mix_pairs_of_tile<GROUP>(acc, shape.padded, fade, scores, v, v_ahead, value_pool.token_stride, count,
                                        shape.head_dim);
      }
#endif
    score_tile<T, GROUP, TAIL>(query, k, k_ahead, key_pool.token_stride, count, shape, scores);
    for (int g = 0; g < GROUP; ++g) {
      fade[g] = soften<false>(scores + g * kTile, count, how, maximum[g], total[g]);
      float* before = acc + g * shape.padded;
      if (fade[g] != 1.f)
        for (int64_t i = 0; i < shape.padded; i += kLanes) (Vec::loadu(before + i) * Vec(fade[g])).store(before + i);
    }
    mix_tile<T, GROUP, TAIL>(acc, scores, v, v_ahead, value_pool.token_stride, count, shape);
  }

  // raw: the sequence's query as it came; query: the same widened, [heads, padded]; maximum, total [heads]; acc [heads, padded]
  void piece(const Piece& piece, const T* raw, int64_t raw_stride, const float* query, const int32_t* blocks, float* maximum, float* total,
             float* acc) const {
    for (int64_t at = piece.begin; at < piece.end;) {
      const int64_t count = tile_length(at, piece.end), next = at + count < piece.end ? at + count : at;
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        // What comes next: the same tokens of the next head, or behind the last head the next tokens of the first.
        const bool is_last = h + 1 == shape.kv_heads;
        const int64_t then = is_last ? next : at, head_then = is_last ? 0 : h + 1;
        const T *k = place(keys, key_pool, blocks, at, h), *v = place(values, value_pool, blocks, at, h);
        const T *k_ahead = place(keys, key_pool, blocks, then, head_then);
        const T *v_ahead = place(values, value_pool, blocks, then, head_then);
        for (int64_t g = 0; g < shape.group;) {
          const int64_t head = h * shape.group + g, take = std::min<int64_t>(kMostHeads, shape.group - g);
          const float* q = query + head * shape.padded;
          float *m = maximum + head, *t = total + head, *a = acc + head * shape.padded;
          // Behind the first heads of a group the tile is in the cache already: nothing is fetched ahead twice.
          const T *ka = g ? k : k_ahead, *va = g ? v : v_ahead;
          unrolled<kMostHeads>([&](auto i) {
            if (i + 1 == take) heads<i + 1>(raw + head * raw_stride, raw_stride, q, k, ka, v, va, count, m, t, a);
          });
          g += take;
        }
      }
      at += count;
    }
  }

  int64_t tile_length(int64_t at, int64_t end) const {
    const int64_t in_block = shape.block_size - at % shape.block_size;
    return std::min({kTile, in_block, end - at});
  }

  const T* place(const T* pool, const Pool& p, const int32_t* blocks, int64_t token, int64_t head) const {
    return pool + blocks[token / shape.block_size] * p.block_stride + (token % shape.block_size) * p.token_stride +
           head * p.head_stride;
  }
};

template <typename T>
void attend(const TensorView& query, const TensorView& keys, const TensorView& values, const TensorView& table,
            const TensorView& lengths, const Scoring& how, int64_t window, const TensorView& out) {
  const int64_t n = query.size(0), d = query.size(2);
  const Shape shape{query.size(1), keys.size(2), query.size(1) / keys.size(2), d,
                    (d + kLanes - 1) / kLanes * kLanes, keys.size(1)};
  const Pool key_pool = strides_of(keys), value_pool = strides_of(values);
  const auto shares = share_out(lengths.as<int32_t>(), n, window, num_threads());
  std::vector<std::pair<int64_t, int64_t>> of_piece;  // sequence, index into the scratch
  std::vector<int64_t> first_of_share;
  for (const auto& share : shares) {
    first_of_share.push_back(static_cast<int64_t>(of_piece.size()));
    for (const auto& piece : share) of_piece.emplace_back(piece.sequence, static_cast<int64_t>(of_piece.size()));
  }
  const int64_t per_piece = shape.heads * (shape.padded + 2), pieces = static_cast<int64_t>(of_piece.size());
  std::vector<float> scratch(pieces * per_piece, 0.f);
  const int32_t* blocks = table.as<int32_t>();
  const T* q = query.as<T>();

  auto run_share = [&](int64_t s) {
    std::vector<float> widened(shape.heads * shape.padded, 0.f);
    int64_t index = first_of_share[s];
    for (const auto& piece : shares[s]) {
      for (int64_t h = 0; h < shape.heads; ++h)
        for (int64_t i = 0; i < d; i += kLanes)
          load(q + piece.sequence * query.stride(0) + h * query.stride(1) + i, d - i)
              .store(widened.data() + h * shape.padded + i);
      float *maximum = scratch.data() + index++ * per_piece, *total = maximum + shape.heads,
            *acc = total + shape.heads;
      std::fill(maximum, maximum + shape.heads, kNone);
      const T* raw = q + piece.sequence * query.stride(0);
      const int32_t* own = blocks + piece.sequence * table.stride(0);
      const T *k = keys.as<T>(), *v = values.as<T>();
      if (d % kLanes == 0)
        Worker<T, false>{shape, key_pool, value_pool, k, v, how}.piece(
            piece, raw, query.stride(1), widened.data(), own, maximum, total, acc);
      else
        Worker<T, true>{shape, key_pool, value_pool, k, v, how}.piece(
            piece, raw, query.stride(1), widened.data(), own, maximum, total, acc);
    }
  };
  parallel_for(0, static_cast<int64_t>(shares.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) run_share(s);
  });

  T* o = out.as<T>();
  std::vector<float> weights(pieces);
  for (int64_t from = 0; from < pieces;) {
    int64_t to = from;
    while (to < pieces && of_piece[to].first == of_piece[from].first) ++to;
    const int64_t sequence = of_piece[from].first;
    for (int64_t h = 0; h < shape.heads; ++h) {
      float top = how.sinks ? how.sinks[h] : kNone, total = 0.f;
      for (int64_t p = from; p < to; ++p) top = std::max(top, scratch[p * per_piece + h]);
      for (int64_t p = from; p < to; ++p) {
        weights[p] = std::exp(scratch[p * per_piece + h] - top);
        total += scratch[p * per_piece + shape.heads + h] * weights[p];
      }
      if (how.sinks) total += std::exp(how.sinks[h] - top);
      for (int64_t i = 0; i < d; i += kLanes) {
        Vec joined(0.f);
        for (int64_t p = from; p < to; ++p) {
          const float* piece = scratch.data() + p * per_piece;
          joined = at::vec::fmadd(Vec(weights[p] / total), Vec::loadu(piece + 2 * shape.heads + h * shape.padded + i), joined);
        }
        store(o + (sequence * shape.heads + h) * d + i, joined, d - i);
      }
    }
    from = to;
  }
}

// How SingleWorker multiplies queries and keys.
template <typename T>
struct FloatProducts {
  using Query = float;
  using Numbers = Vec;
  static constexpr bool kIsPairs = false, kIsTiles = false;
  static constexpr int64_t kStep = kLanes;
  static Numbers read(const float* query) { return Vec::loadu(query); }
  static Numbers read_key(const T* key, int64_t left) { return load(key, left); }
  static Vec add(const Vec& sums, const Vec& query, const Vec& key) { return at::vec::fmadd(query, key, sums); }
  static Vec exp(const Vec& x) { return x.exp(); }
};

#if MILLM_BF16_DOT
struct PairsOfKeys {
  using Query = BFloat16;
  using Numbers = __m512bh;
  static constexpr bool kIsPairs = true, kIsTiles = false;
  static constexpr int64_t kStep = kPairColumns;
  static Numbers read(const BFloat16* query) { return (__m512bh)_mm512_loadu_si512(query); }
  static Numbers read_key(const BFloat16* key, int64_t) { return read(key); }
  static Vec add(const Vec& sums, Numbers query, Numbers key) { return _mm512_dpbf16_ps(sums, query, key); }
  static Vec exp(const Vec& x) { return rounded_exp(x); }
};
#endif

#if MILLM_TILES
// All query heads of a key-value head, up to sixteen, at once: keys times queries, and weights times values.
struct TilesOfKeys : PairsOfKeys {
  static constexpr bool kIsTiles = true;
};
#endif

// The query heads of some key-value heads, for a token that sees `length` tokens; query and out have all heads of it.
template <typename T>
struct SingleTask {
  const T* query;
  int64_t head, heads, length;
  const int32_t* blocks;
  T* out;
};

// A token's query in which the order of the sums depends on its position only: a thread takes all keys of key-value
// heads, in blocks of kOrderedBlock from the start of the sequence. As PromptWorker with ORDERED. With pairs, each 32
// columns of `mixed` lie as `in_columns` takes them.
template <typename T, typename Products>
class SingleWorker {
  static constexpr int64_t kAhead = 32;  // rows, which fit the first cache
  static constexpr int64_t kMostHeads = Products::kIsTiles ? kTileSide : 2;  // query heads that are computed together

 public:
  SingleWorker(const Shape& shape, const Pool& key_pool, const Pool& value_pool, const T* keys, const T* values,
               const Scoring& how, int64_t window, int64_t most_heads, int64_t head_stride)
      : shape_(shape), key_pool_(key_pool), value_pool_(value_pool), keys_(keys), values_(values), how_(how),
        window_(window), head_stride_(head_stride), query_(most_heads * shape.group * shape.padded),
        mixed_((most_heads * shape.group + kMostHeads) * shape.padded), maximum_(most_heads * shape.group),
        total_(most_heads * shape.group),
        columns_(Products::kIsTiles ? most_heads * groups_of_heads() * shape.head_dim / 2 * kTileSide : 0),
        copied_(Products::kIsTiles ? kTileSide * shape.head_dim : 0),
        tiles_(Products::kIsTiles, static_cast<int>(std::min(kTileSide, shape.group)), 5) {}

  // `then` is what this worker runs next, or nothing: its first keys and values are fetched ahead.
  void run(const SingleTask<T>& task, const SingleTask<T>* then) {
    const int64_t first = task.head * shape_.group, count = task.heads * shape_.group, d = shape_.head_dim;
    for (int64_t g = 0; g < count; ++g) {
      if constexpr (Products::kIsPairs)
        std::copy_n(task.query + (first + g) * head_stride_, d, query_.data() + g * shape_.padded);
      else
        for (int64_t i = 0; i < d; i += kLanes)
          load(task.query + (first + g) * head_stride_ + i, d - i).store(query_.data() + g * shape_.padded + i);
      maximum_[g] = how_.sinks ? how_.sinks[first + g] : kNone;
      total_[g] = maximum_[g] == kNone ? 0.f : 1.f;
    }
    std::fill(mixed_.begin(), mixed_.end(), 0.f);
    if constexpr (Products::kIsTiles) this->take_columns(task.heads);
    if (!has_rows_) find_rows(task, first_block(task), now_);
    for (int64_t at = first_block(task); at < task.length; at += kOrderedBlock) {
      const bool is_last = at + kOrderedBlock >= task.length;
      has_rows_ = !is_last || then != nullptr;
      if (has_rows_) is_last ? find_rows(*then, first_block(*then), next_) : find_rows(task, at + kOrderedBlock, next_);
      for (int64_t h = 0; h < task.heads; ++h) {
        keys_at_ = (task.head + h) * key_pool_.head_stride;
        values_at_ = (task.head + h) * value_pool_.head_stride;
        const bool is_last_head = h + 1 == task.heads;
        then_ = is_last_head && !has_rows_ ? nullptr : is_last_head ? &next_ : &now_;
        then_at_ = (is_last_head ? (is_last && then ? *then : task).head : task.head + h + 1) * key_pool_.head_stride;
        for (int64_t g = 0; g < shape_.group; g += kMostHeads) {
          fetches_ = g == 0;  // the other heads find it in a cache
          if constexpr (Products::kIsTiles)
            this->attend_in_tiles(h, g);
          else if (shape_.group - g >= 2)
            attend<2>(h * shape_.group + g);
          else
            attend<1>(h * shape_.group + g);
        }
      }
      std::swap(now_, next_);
    }
    for (int64_t g = 0; g < count; ++g) {
      const Vec share(1.f / total_[g]);
      for (int64_t i = 0; i < d; i += kLanes) store(task.out + (first + g) * d + i, mixed_at(g, i) * share, d - i);
    }
  }

 private:
  Vec mixed_at(int64_t g, int64_t column) const {
    const float* mixed = mixed_.data() + g * shape_.padded;
#if MILLM_BF16_DOT
    if constexpr (Products::kIsPairs) {
      const float* front = mixed + column / kPairColumns * kPairColumns;
      return in_columns(Vec::loadu(front), Vec::loadu(front + kLanes), column % kPairColumns != 0);
    }
#endif
    return Vec::loadu(mixed + column);
  }

  struct Rows {  // of the first head, of a block of kOrderedBlock tokens, of which [begin, end) are seen
    int64_t begin, end;
    const T *keys[kOrderedBlock], *values[kOrderedBlock];
  };

  int64_t first_seen(const SingleTask<T>& task) const {
    return window_ > 0 ? std::max<int64_t>(0, task.length - window_) : 0;
  }

  int64_t first_block(const SingleTask<T>& task) const { return first_seen(task) / kOrderedBlock * kOrderedBlock; }

  // Those of the block that starts at token `at`.
  void find_rows(const SingleTask<T>& task, int64_t at, Rows& rows) const {
    rows.begin = std::max<int64_t>(0, first_seen(task) - at);
    rows.end = std::min(kOrderedBlock, task.length - at);
    const int64_t size = shape_.block_size;
    int64_t block = (at + rows.begin) / size, offset = (at + rows.begin) % size;
    for (int64_t t = rows.begin; t < rows.end; ++block, offset = 0) {
      const T *key = row_of(keys_, key_pool_, task, block, offset), *value = row_of(values_, value_pool_, task, block, offset);
      const int64_t end = std::min(rows.end, t + size - offset);
      for (; t < end; ++t, key += key_pool_.token_stride, value += value_pool_.token_stride) {
        rows.keys[t] = key;
        rows.values[t] = value;
      }
    }
    std::fill(rows.keys, rows.keys + rows.begin, rows.keys[rows.begin]);
    std::fill(rows.values, rows.values + rows.begin, rows.values[rows.begin]);
  }

  static const T* row_of(const T* pool, const Pool& strides, const SingleTask<T>& task, int64_t block, int64_t offset) {
    return pool + task.blocks[block] * strides.block_stride + offset * strides.token_stride;
  }

  template <int GROUP>
  void attend(int64_t g) {
    const int64_t skipped = now_.begin, count = now_.end;
    const typename Products::Query* query = query_.data() + g * shape_.padded;
    float *scores = scores_, *mixed = mixed_.data() + g * shape_.padded;
    score<GROUP>(query, skipped, count, scores);
    for (int one = 0; one < GROUP; ++one)
      soften(scores + one * kOrderedBlock, skipped, count, maximum_[g + one], total_[g + one],
             mixed + one * shape_.padded);
    int64_t i = 0;
#if MILLM_BF16_DOT
    if constexpr (Products::kIsPairs) {
      pair_weights(scores, GROUP);
      for (; i + 4 * kPairColumns <= shape_.head_dim; i += 4 * kPairColumns) mix_pairs<GROUP, 4>(skipped, count, i, mixed);
      for (; i < shape_.head_dim; i += kPairColumns) mix_pairs<GROUP, 1>(skipped, count, i, mixed);
      return;
    }
#endif
    constexpr int kMany = kLanes == 16 ? 8 : 4;
    for (; i + kMany * kLanes <= shape_.head_dim; i += kMany * kLanes)
      mix<GROUP, kMany>(scores, skipped, count, i, mixed);
    for (; i < shape_.head_dim; i += kLanes) mix<GROUP, 1>(scores, skipped, count, i, mixed);
  }

  // Four keys side by side, because each sum is one chain of additions.
  template <int GROUP>
  void score(const typename Products::Query* query, int64_t skipped, int64_t count, float* scores) {
    const int64_t d = shape_.head_dim;
    for (int64_t t = skipped; t < count; t += 4) {
      const T* rows[4];
      for (int j = 0; j < 4; ++j) rows[j] = now_.keys[std::min(t + j, count - 1)] + keys_at_;
      for (int j = 0; j < 4; ++j)
        fetch_after_key(t + j);
      Vec acc[GROUP][4];
      for (auto& head : acc)
        for (Vec& a : head) a = Vec(0.f);
      for (int64_t i = 0; i < d; i += Products::kStep) {
        typename Products::Numbers key[4];
        for (int j = 0; j < 4; ++j) key[j] = Products::read_key(rows[j] + i, d - i);
        for (int g = 0; g < GROUP; ++g) {
          const auto q = Products::read(query + g * shape_.padded + i);
          for (int j = 0; j < 4; ++j) acc[g][j] = Products::add(acc[g][j], q, key[j]);
        }
      }
      for (int g = 0; g < GROUP; ++g) {
        float four[4];
        four_sums(acc[g][0], acc[g][1], acc[g][2], acc[g][3], four);
        std::copy(four, four + std::min<int64_t>(4, count - t), scores + g * kOrderedBlock + t);
      }
    }
  }

  void soften(float* scores, int64_t skipped, int64_t count, float& maximum, float& total, float* mixed) const {
    const int64_t end = (count + kLanes - 1) / kLanes * kLanes;
    const auto hide = [&] {
      std::fill(scores, scores + skipped, kNone);
      std::fill(scores + count, scores + end, kNone);
    };
    hide();
    Vec top(kNone);
    for (int64_t t = 0; t < end; t += kLanes) {
      Vec s = Vec::loadu(scores + t) * Vec(how_.scale);
      if (how_.softcap > 0) s = (s / Vec(how_.softcap)).tanh() * Vec(how_.softcap);
      s.store(scores + t);
      if (how_.softcap <= 0) top = at::vec::maximum(top, s);
    }
    if (how_.softcap > 0) {  // tanh made the hidden ones finite
      hide();
      for (int64_t t = 0; t < end; t += kLanes) top = at::vec::maximum(top, Vec::loadu(scores + t));
    }
    const float raised = std::max(maximum, largest(top));
    const Vec safe = at::vec::maximum(Vec(raised), Vec(kLowest));
    Vec added(0.f);
    for (int64_t t = 0; t < end; t += kLanes) {
      const Vec weight = Products::exp(Vec::loadu(scores + t) - safe);
      weight.store(scores + t);
      added = added + weight;
    }
    const Vec fade = (Vec(maximum) - safe).exp();
    float lanes[kLanes];
    at::vec::fmadd(Vec(total), fade, Vec(ordered_sum(added))).store(lanes);
    total = lanes[0];
    if (raised != maximum)
      for (int64_t i = 0; i < shape_.padded; i += kLanes) (Vec::loadu(mixed + i) * fade).store(mixed + i);
    maximum = raised;
  }

  template <int GROUP, int NV>
  void mix(const float* weights, int64_t skipped, int64_t count, int64_t from, float* mixed) {
    Vec sums[GROUP][NV];
    for (int g = 0; g < GROUP; ++g)
      for (int v = 0; v < NV; ++v) sums[g][v] = Vec::loadu(mixed + g * shape_.padded + from + v * kLanes);
    for (int64_t t = skipped; t < count; ++t) {
      fetch_after_value(t, from, NV * kLanes);
      for (int v = 0; v < NV; ++v) {
        const Vec value = load(now_.values[t] + values_at_ + from + v * kLanes, shape_.head_dim - from - v * kLanes);
        for (int g = 0; g < GROUP; ++g)
          sums[g][v] = at::vec::fmadd(Vec(weights[g * kOrderedBlock + t]), value, sums[g][v]);
      }
    }
    for (int g = 0; g < GROUP; ++g)
      for (int v = 0; v < NV; ++v) sums[g][v].store(mixed + g * shape_.padded + from + v * kLanes);
  }

#if MILLM_BF16_DOT
  void pair_weights(const float* weights, int64_t heads) {
    for (int64_t g = 0; g < heads; ++g)
      for (int64_t t = 0; t < kOrderedBlock; t += kPairColumns) {
        const float* w = weights + g * kOrderedBlock + t;
        _mm512_store_si512(pairs_[g] + t / 2, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(w + 16), _mm512_loadu_ps(w)));
      }
  }

  // For CHUNKS times 32 columns. In a pair that has one key, the other weighs nothing.
  template <int GROUP, int CHUNKS>
  void mix_pairs(int64_t skipped, int64_t count, int64_t from, float* mixed) {
    __m512 sums[GROUP][2 * CHUNKS];
    for (int g = 0; g < GROUP; ++g)
      for (int v = 0; v < 2 * CHUNKS; ++v) sums[g][v] = _mm512_loadu_ps(mixed + g * shape_.padded + from + v * kLanes);
    for (int64_t t = skipped / 2 * 2; t < count; t += 2) {
      const T *even = now_.values[std::max(t, skipped)] + values_at_ + from;
      const T *odd = now_.values[std::min(t + 1, count - 1)] + values_at_ + from;
      fetch_after_value(t, from, CHUNKS * kPairColumns);
      fetch_after_value(t + 1, from, CHUNKS * kPairColumns);
      add_pair<GROUP, CHUNKS>(even, odd, pairs_[0] + t / 2, kOrderedBlock / 2, sums);
    }
    for (int g = 0; g < GROUP; ++g)
      for (int v = 0; v < 2 * CHUNKS; ++v) _mm512_storeu_ps(mixed + g * shape_.padded + from + v * kLanes, sums[g][v]);
  }
#endif

#if MILLM_TILES
  int64_t groups_of_heads() const { return (shape_.group + kTileSide - 1) / kTileSide; }

  // The queries of up to sixteen heads side by side, word by word, with zeros behind the last head.
  void take_columns(int64_t heads) {
    const int64_t words = shape_.head_dim / 2;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t g = 0; g < shape_.group; ++g) {
        const BFloat16* query = query_.data() + (h * shape_.group + g) * shape_.padded;
        int32_t* to = columns_.data() + (h * groups_of_heads() + g / kTileSide) * words * kTileSide + g % kTileSide;
        for (int64_t i = 0; i < words; ++i) std::memcpy(to + i * kTileSide, query + 2 * i, sizeof(*to));
      }
  }

  // The query heads of key-value head h from g on.
  void attend_in_tiles(int64_t h, int64_t g) {
    const int64_t skipped = now_.begin, count = now_.end, heads = std::min(kTileSide, shape_.group - g);
    const int64_t first = h * shape_.group + g;
    score_in_tiles(columns_.data() + (h * groups_of_heads() + g / kTileSide) * shape_.head_dim / 2 * kTileSide, heads, skipped,
                   count);
    const int64_t softened = (count + kLanes - 1) / kLanes * kLanes, mixed = (count + 31) / kPairColumns * kPairColumns;
    for (int64_t one = 0; one < heads; ++one) {
      float* scores = scores_ + one * kOrderedBlock;
      soften(scores, skipped, count, maximum_[first + one], total_[first + one],
             mixed_.data() + (first + one) * shape_.padded);
      std::fill(scores + softened, scores + mixed, 0.f);
    }
    pair_weights(scores_, heads);
    if (shape_.group > kTileSide) std::fill(pairs_[heads], pairs_[0] + kMostHeads * kOrderedBlock / 2, 0);
    int64_t i = 0;
    for (; i + 2 * kPairColumns <= shape_.head_dim; i += 2 * kPairColumns) mix_in_tiles<4>(first, skipped, count, i);
    if (i < shape_.head_dim) mix_in_tiles<2>(first, skipped, count, i);
  }

  // Scores of sixteen keys at a time, of which `hide` removes those behind the last one and before the first. Values
  // are fetched meanwhile, because they are read in a burst.
  void score_in_tiles(const int32_t* columns, int64_t heads, int64_t skipped, int64_t count) {
    const int64_t d = shape_.head_dim;
    const __m512i rows = _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 4);
    for (int64_t t = skipped / kTileSide * kTileSide; t < count; t += kTileSide) {
      for (int64_t r = std::max(t, skipped); r < std::min(t + kTileSide, count); ++r) {
        fetch_after_key(r);
        if (fetches_) fetch_row(now_.values[r] + values_at_, d);
      }
      const T* keys = now_.keys[t] + keys_at_;
      int64_t stride = key_pool_.token_stride;
      if (shape_.block_size % kTileSide != 0 || t < skipped || t + kTileSide > count) {  // not one after the other
        for (int64_t r = 0; r < kTileSide; ++r)
          std::copy_n(now_.keys[std::min(t + r, count - 1)] + keys_at_, d, copied_.data() + r * d);
        keys = copied_.data();
        stride = d;
      }
      before_tiles();
      _tile_zero(5);
      for (int64_t i = 0; i < d / 2; i += kTileSide) {
        _tile_loadd(6, keys + 2 * i, stride * sizeof(T));
        _tile_loadd(7, columns + i * kTileSide, kTileSide * sizeof(int32_t));
        _tile_dpbf16ps(5, 6, 7);
      }
      alignas(64) float scores[kTileSide][kTileSide];
      _tile_stored(5, scores, sizeof(scores[0]));
      before_tiles();
      for (int64_t g = 0; g < heads; ++g)
        _mm512_storeu_ps(scores_ + g * kOrderedBlock + t, _mm512_i32gather_ps(rows, scores[0] + g, sizeof(float)));
    }
  }

  // 32 values from token t on, and COLUMNS times sixteen columns of them from `from` on, as tiles of pairs of tokens.
  // In a pair that has one, the other weighs nothing.
  template <int COLUMNS>
  void pack_values(int64_t skipped, int64_t count, int64_t t, int64_t from, int32_t* to) const {
    for (int64_t end = t + kPairColumns; t < end; t += 2, to += kTileSide) {
      const __mmask16 mask = t < count ? 0xffff : 0;
      const T *even = now_.values[std::clamp(t, skipped, count - 1)] + values_at_ + from;
      const T *odd = now_.values[std::clamp(t + 1, skipped, count - 1)] + values_at_ + from;
      for (int c = 0; c < COLUMNS; c += 2) {
        const __m512i a = _mm512_maskz_loadu_epi32(mask, even + c * kTileSide);
        const __m512i b = _mm512_maskz_loadu_epi32(mask, odd + c * kTileSide);
        _mm512_storeu_si512(to + c * kTileSize, _mm512_unpacklo_epi16(a, b));
        _mm512_storeu_si512(to + (c + 1) * kTileSize, _mm512_unpackhi_epi16(a, b));
      }
    }
  }

  // For COLUMNS times sixteen columns from `from` on. Tiles 0 to 3 are the sums, 4 the weights. Values are packed 32
  // tokens ahead, because tiles wait until what they load is in the cache, and few enough to stay there.
  template <int COLUMNS>
  void mix_in_tiles(int64_t first, int64_t skipped, int64_t count, int64_t from) {
    float* mixed = mixed_.data() + first * shape_.padded + from;
    const int64_t stride = shape_.padded * sizeof(float);
    int64_t t = skipped / kPairColumns * kPairColumns;
    int32_t *values = packed_[0], *next = packed_[1];
    pack_values<COLUMNS>(skipped, count, t, from, values);
    before_tiles();
    _tile_loadd(0, mixed, stride);
    _tile_loadd(1, mixed + kTileSide, stride);
    if constexpr (COLUMNS == 4) {
      _tile_loadd(2, mixed + 2 * kTileSide, stride);
      _tile_loadd(3, mixed + 3 * kTileSide, stride);
    }
    for (; t < count; t += kPairColumns, std::swap(values, next)) {
      if (t + kPairColumns < count) pack_values<COLUMNS>(skipped, count, t + kPairColumns, from, next);
      before_tiles();
      _tile_loadd(4, pairs_[0] + t / 2, sizeof(pairs_[0]));
      _tile_loadd(6, values, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, values + kTileSize, 64);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (COLUMNS == 4) {
        _tile_loadd(6, values + 2 * kTileSize, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(7, values + 3 * kTileSize, 64);
        _tile_dpbf16ps(3, 4, 7);
      }
    }
    _tile_stored(0, mixed, stride);
    _tile_stored(1, mixed + kTileSide, stride);
    if constexpr (COLUMNS == 4) {
      _tile_stored(2, mixed + 2 * kTileSide, stride);
      _tile_stored(3, mixed + 3 * kTileSide, stride);
    }
    before_tiles();
  }
#else
  int64_t groups_of_heads() const { return 0; }
#endif

  // Fetch what is read kAhead rows later: a block's keys come first, then its values, then the keys of what follows.
  inline __attribute__((always_inline)) void fetch_after_key(int64_t t) const {
    if (!fetches_) return;
    const int64_t next = t + kAhead, value = now_.begin + next - now_.end;
    if (next < now_.end)
      fetch_row(now_.keys[next] + keys_at_, shape_.head_dim);
    else if (value < now_.end)
      fetch_row(now_.values[value] + values_at_, shape_.head_dim);
  }

  inline __attribute__((always_inline)) void fetch_after_value(int64_t t, int64_t from, int64_t count) const {
    if (!fetches_) return;
    const int64_t next = t + kAhead;
    if (next < now_.end)
      fetch_row(now_.values[next] + values_at_ + from, count);
    else if (then_ && then_->begin + next - now_.end < then_->end)
      fetch_row(then_->keys[then_->begin + next - now_.end] + then_at_ + from, count);
  }

  static void fetch_row(const T* row, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) fetch_soon(row + i);
  }

  const Shape& shape_;
  const Pool &key_pool_, &value_pool_;
  const T *keys_, *values_;
  const Scoring& how_;
  const int64_t window_, head_stride_;
  std::vector<typename Products::Query> query_;  // [query heads of the task, padded]
  std::vector<float> mixed_;                      // [query heads of the task, padded]
  std::vector<float> maximum_, total_;            // [query heads of the task]
  std::vector<int32_t> columns_;           // queries as tiles
  std::vector<T> copied_;                  // sixteen keys that do not lie one after the other
  const TileSettings tiles_;
  alignas(64) int32_t packed_[2][Products::kIsTiles ? 4 * kTileSize : 1];  // values as tiles
  alignas(64) float scores_[kMostHeads * kOrderedBlock];      // of the heads that are computed together
  alignas(64) int32_t pairs_[kMostHeads][kOrderedBlock / 2];  // their weights
  int64_t keys_at_ = 0, values_at_ = 0;  // of the present head
  Rows now_, next_;
  bool has_rows_ = false;  // whether now_ has the first rows of the next task
  const Rows* then_ = nullptr;  // what follows, whose keys are at then_at_
  int64_t then_at_ = 0;
  bool fetches_ = false;
};

constexpr int64_t kTasks = 16;  // of a thread, or more

// `length(i)` and `blocks(i)` of token i: how many tokens it sees, and where they are.
template <typename T, typename Products, typename Length, typename Blocks>
void attend_singles_by(const TensorView& query, const TensorView& keys, const TensorView& values, const Length& length,
                       const Blocks& blocks, const Scoring& how, int64_t window, const TensorView& out) {
  const int64_t n = query.size(0), d = query.size(2);
  const Shape shape{query.size(1), keys.size(2), query.size(1) / keys.size(2), d,
                    (d + kLanes - 1) / kLanes * kLanes, keys.size(1)};
  const Pool key_pool = strides_of(keys), value_pool = strides_of(values);
  int64_t all = 0;
  for (int64_t i = 0; i < n; ++i) all += window > 0 ? std::min<int64_t>(window, length(i)) : length(i);
  // Heads of a token lie side by side in memory, so a task has several if there are tasks enough to keep threads even.
  const int64_t heads = std::clamp<int64_t>(n * shape.kv_heads / (kTasks * num_threads()), 1, shape.kv_heads);
  const int64_t per_token = (shape.kv_heads + heads - 1) / heads, num_tasks = n * per_token;
  std::atomic<int64_t> next{0};
  const auto task_of = [&](int64_t number) {
    const int64_t i = number / per_token, head = number % per_token * heads;
    return SingleTask<T>{query.as<T>() + i * query.stride(0), head, std::min(heads, shape.kv_heads - head), length(i),
                         blocks(i), out.as<T>() + i * shape.heads * d};
  };
  const auto work = [&](int64_t, int64_t) {
    SingleWorker<T, Products> worker(shape, key_pool, value_pool, keys.as<T>(), values.as<T>(), how, window, heads,
                                     query.stride(1));
    for (int64_t number = next++; number < num_tasks;) {
      const int64_t following = next++;
      const SingleTask<T> task = task_of(number), then = task_of(std::min(following, num_tasks - 1));
      worker.run(task, following < num_tasks ? &then : nullptr);
      number = following;
    }
  };
  const int64_t most = std::max<int64_t>(1, std::min(num_threads(), num_tasks));
  parallel_for(0, std::max<int64_t>(1, std::min(most, all / (2 * kTile))), 1, work);
}

template <typename T, typename Length, typename Blocks>
void attend_singles(const TensorView& query, const TensorView& keys, const TensorView& values, const Length& length,
                    const Blocks& blocks, const Scoring& how, int64_t window, const TensorView& out) {
#if MILLM_TILES
  if constexpr (kMultipliesPairs<T>)
    if (query.size(2) % kPairColumns == 0 && has_tiles())
      return attend_singles_by<T, TilesOfKeys>(query, keys, values, length, blocks, how, window, out);
#endif
#if MILLM_BF16_DOT
  if constexpr (kMultipliesPairs<T>)
    if (query.size(2) % kPairColumns == 0)
      return attend_singles_by<T, PairsOfKeys>(query, keys, values, length, blocks, how, window, out);
#endif
  attend_singles_by<T, FloatProducts<T>>(query, keys, values, length, blocks, how, window, out);
}

void decode_attention(const TensorView& query, const TensorView& keys, const TensorView& values,
                      const TensorView& table, const TensorView& lengths, const Scoring& how, int64_t window,
                      bool ordered, const TensorView& out) {
  if (!ordered) {
    MILLM_BY_TYPE(query, attend<T>(query, keys, values, table, lengths, how, window, out));
    return;
  }
  const auto length = [&](int64_t i) { return static_cast<int64_t>(lengths.as<int32_t>()[i]); };
  const auto blocks = [&](int64_t i) { return table.as<int32_t>() + i * table.stride(0); };
  MILLM_BY_TYPE(query, attend_singles<T>(query, keys, values, length, blocks, how, window, out));
}

void copy_rows(const TensorView& rows, const int64_t* slots, const TensorView& pool) {
  const int64_t block_size = pool.size(1), heads = pool.size(2), size = pool.element_size;
  const int64_t bytes = pool.size(3) * size;
  char* to = pool.as<char>();
  const char* from = rows.as<char>();
  parallel_for(0, rows.size(0), std::max<int64_t>(1, 65536 / (heads * bytes)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t block = slots[t] / block_size, offset = slots[t] % block_size;
      for (int64_t h = 0; h < heads; ++h)
        std::memcpy(to + (block * pool.stride(0) + offset * pool.stride(1) + h * pool.stride(2)) * size,
                    from + (t * rows.stride(0) + h * rows.stride(1)) * size, bytes);
    }
  });
}

}  // namespace millm
