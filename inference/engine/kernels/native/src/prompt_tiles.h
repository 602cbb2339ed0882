// Causal attention of prompts' chunks with tiles (AMX), for bfloat16 and heads of whole vectors of pairs.
//
// A task is one key-value head of one sequence with up to kMostTileRows of its query rows (token x query head). Keys and
// values of a block are packed once for all of them; then 32 rows at a time are scored, softened and mixed. The sums of a
// query have the order of a single token's (decode_attention.h): blocks of keys start at multiples of kOrderedBlock, and
// keys that a query does not see add exact zeros.
#pragma once

#include "attention.h"
#include "decode_attention.h"
#include "tiles.h"
#include "transpose.h"
#include "vectors.h"

#if MILLM_TILES

namespace millm {

constexpr int64_t kTileQueries = 32;   // rows that are computed together: two tiles
constexpr int64_t kMostTileRows = 256;  // of a task

class TilePromptWorker {
 public:
  TilePromptWorker(const Shape& shape, const Pool& key_pool, const Pool& value_pool, const BFloat16* keys,
                   const BFloat16* values, const Scoring& how, int64_t window)
      : shape_(shape), key_pool_(key_pool), value_pool_(value_pool), keys_(keys), values_(values), how_(how),
        window_(window), queries_(kMostTileRows * shape.head_dim / 2), packed_keys_(kOrderedBlock * shape.head_dim / 2),
        packed_values_(kOrderedBlock * shape.head_dim / 2), mixed_(kMostTileRows * shape.head_dim), tiles_(true) {}

  // query and out point to the step's tokens, [tokens, heads, head_dim].
  void run(const Prompt& prompt, const PromptTask& task, const BFloat16* query, int64_t token_stride,
           int64_t head_stride, BFloat16* out) {
    take_queries(prompt, task, query, token_stride, head_stride);
    const int64_t newest = positions_[task.rows - 1], from = first_seen(positions_[0]);
    for (int64_t at = from / kOrderedBlock * kOrderedBlock; at <= newest; at += kOrderedBlock) {
      const int64_t count = std::min(kOrderedBlock, newest + 1 - at), skipped = std::max<int64_t>(0, from - at);
      pack_keys(prompt, task.head, at, skipped, count);
      pack_values(prompt, task.head, at, skipped, count);
      attend(task.rows, at, count);
    }
    write(prompt, task, out);
  }

 private:
  static constexpr int64_t kVectors = kOrderedBlock / kLanes;

  int64_t first_seen(int64_t position) const { return window_ > 0 ? std::max<int64_t>(0, position - window_ + 1) : 0; }

  BFloat16* queries() const { return reinterpret_cast<BFloat16*>(queries_.data()); }
  float* mixed() const { return reinterpret_cast<float*>(mixed_.data()); }

  void take_queries(const Prompt& prompt, const PromptTask& task, const BFloat16* query, int64_t token_stride,
                    int64_t head_stride) {
    const int64_t d = shape_.head_dim, rows = (task.rows + kTileQueries - 1) / kTileQueries * kTileQueries;
    for (int64_t m = 0; m < task.rows; ++m) {
      const QueryRow row = row_of(prompt, task, shape_, m);
      std::copy_n(query + row.token * token_stride + row.head * head_stride, d, queries() + m * d);
      positions_[m] = static_cast<int32_t>(row.position);
      maximum_[m] = how_.sinks ? how_.sinks[row.head] : kNone;
      total_[m] = maximum_[m] == kNone ? 0.f : 1.f;
    }
    for (int64_t m = task.rows; m < rows; ++m) {  // computed like the last one, and not written
      std::copy_n(queries() + (task.rows - 1) * d, d, queries() + m * d);
      positions_[m] = positions_[task.rows - 1];
      maximum_[m] = kNone;
      total_[m] = 0.f;
    }
    std::fill_n(mixed(), rows * d, 0.f);
  }

  // A token's key or value.
  static const BFloat16* entry(const BFloat16* pool, const Pool& strides, const Prompt& prompt, int64_t token,
                               int64_t size, int64_t head) {
    return pool + prompt.blocks[token / size] * strides.block_stride + token % size * strides.token_stride +
           head * strides.head_stride;
  }

  // Tiles of sixteen keys side by side, word by word: [keys / 16, words / 16, 16, 16]. Tokens before `skipped` may be in
  // the cache no more: zeros stand for them, and for those behind the last one.
  void pack_keys(const Prompt& prompt, int64_t head, int64_t at, int64_t skipped, int64_t count) {
    const int64_t d = shape_.head_dim;
    int32_t* to = packed_keys_.data();
    for (int64_t t = 0; t < count; t += 2 * kTileSide) {
      const BFloat16* rows[2 * kTileSide];
      for (int64_t r = 0; r < 2 * kTileSide; ++r)
        rows[r] = t + r >= skipped && t + r < count
                      ? entry(keys_, key_pool_, prompt, at + t + r, shape_.block_size, head)
                      : nullptr;
      for (int64_t side = 0; side < 2; ++side)
        for (int64_t i = 0; i < d; i += kPairColumns, to += kTileSize) {
          __m512i words[kTileSide];
          unrolled<kTileSide>([&](auto r) {
            const BFloat16* row = rows[side * kTileSide + r];
            words[r] = row ? _mm512_loadu_si512(row + i) : _mm512_setzero_si512();
          });
          transpose(words);
          unrolled<kTileSide>([&](auto r) { _mm512_store_si512(to + r * kTileSide, words[r]); });
        }
    }
  }

  // Tiles of pairs of values: [values / 32, columns / 16, 16, 16]. The columns of two tiles lie as `in_columns` takes
  // them.
  void pack_values(const Prompt& prompt, int64_t head, int64_t at, int64_t skipped, int64_t count) {
    const int64_t d = shape_.head_dim;
    const auto row = [&](int64_t t) {
      return t >= skipped && t < count ? entry(values_, value_pool_, prompt, at + t, shape_.block_size, head) : nullptr;
    };
    for (int64_t t = 0; t < (count + kPairColumns - 1) / kPairColumns * kPairColumns; t += 2) {
      const BFloat16 *even = row(t), *odd = row(t + 1);
      int32_t* to = packed_values_.data() + t / kPairColumns * (d / kTileSide) * kTileSize + t % kPairColumns / 2 * kTileSide;
      for (int64_t i = 0; i < d; i += kPairColumns, to += 2 * kTileSize) {
        const __m512i a = even ? _mm512_loadu_si512(even + i) : _mm512_setzero_si512();
        const __m512i b = odd ? _mm512_loadu_si512(odd + i) : _mm512_setzero_si512();
        _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(to + kTileSize, _mm512_unpackhi_epi16(a, b));
      }
    }
  }

  // A block of keys and values. The next rows are scored before the present ones are mixed, because tiles wait until what
  // they load has been stored in the cache.
  void attend(int64_t rows, int64_t at, int64_t count) {
    const int64_t pairs = (count + kPairColumns - 1) / kPairColumns;
    int64_t softened = -1;
    const auto mix_softened = [&] {
      if (softened < 0) return;
      rows - softened > kTileSide ? mix<2>(softened, pairs) : mix<1>(softened, pairs);
    };
    for (int64_t row = 0; row < rows; row += kTileQueries) {
      const int64_t last = std::min(row + kTileQueries, rows) - 1;
      if (at > positions_[last] || at + count <= first_seen(positions_[row])) continue;
      last - row < kTileSide ? score<1>(row, pairs) : score<2>(row, pairs);
      mix_softened();
      const bool is_cut = at + count - 1 > positions_[row] || count % kPairColumns != 0 || at < first_seen(positions_[last]);
      for (int64_t first = row; first <= last; first += kTileSide) {
        float(*scores)[kOrderedBlock] = scores_ + (first - row);
        BFloat16(*weights)[kOrderedBlock] = weights_ + (first - row);
        if (pairs == 1)
          soften<2>(first, at, is_cut, scores, weights);
        else if (pairs == 2)
          soften<4>(first, at, is_cut, scores, weights);
        else
          soften<kVectors>(first, at, is_cut, scores, weights);
      }
      softened = row;
    }
    mix_softened();
  }

  // Tiles 0 to 3 are the sums, 4 and 5 the queries, 6 and 7 the keys.
  template <int SIDES>
  void score(int64_t row, int64_t pairs) {
    const int64_t d = shape_.head_dim, stride = d * sizeof(BFloat16);
    const BFloat16* queries = this->queries() + row * d;
    const int32_t* keys = packed_keys_.data();
    const int64_t side = d / kPairColumns * kTileSize;
    before_tiles();
    for (int64_t pair = 0; pair < pairs; ++pair, keys += side) {
      _tile_zero(0);
      _tile_zero(1);
      if constexpr (SIDES > 1) _tile_zero(2);
      if constexpr (SIDES > 1) _tile_zero(3);
      for (int64_t i = 0; i < d; i += kPairColumns, keys += kTileSize) {
        _tile_loadd(4, queries + i, stride);
        _tile_loadd(6, keys, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, keys + side, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (SIDES > 1) {
          _tile_loadd(5, queries + kTileSide * d + i, stride);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      float* to = scores_[0] + pair * kPairColumns;
      _tile_stored(0, to, sizeof(scores_[0]));
      _tile_stored(1, to + kTileSide, sizeof(scores_[0]));
      if constexpr (SIDES > 1) {
        _tile_stored(2, to + kTileSide * kOrderedBlock, sizeof(scores_[0]));
        _tile_stored(3, to + kTileSide * kOrderedBlock + kTileSide, sizeof(scores_[0]));
      }
    }
    before_tiles();
  }

  // Scores of sixteen rows to weights, of VECTORS times sixteen keys; what was mixed before fades as the maximum rises.
  template <int VECTORS>
  void soften(int64_t row, int64_t at, bool is_cut, float (*scores)[kOrderedBlock], BFloat16 (*weights)[kOrderedBlock]) {
    alignas(64) float sums[kTileSide];
    if (is_cut || how_.softcap > 0)
      for (int64_t r = 0; r < kTileSide; ++r) cut<VECTORS>(scores[r], positions_[row + r], at);
    const Vec scale(how_.softcap > 0 ? 1.f : how_.scale);
    for (int64_t r = 0; r < kTileSide; r += 4) {
      Vec tops[4];
      unrolled<4>([&](auto i) {
        tops[i] = Vec::loadu(scores[r + i]) * scale;
        for (int v = 1; v < VECTORS; ++v)
          tops[i] = at::vec::maximum(tops[i], Vec::loadu(scores[r + i] + v * kLanes) * scale);
      });
      four_largest(tops[0], tops[1], tops[2], tops[3], sums + r);
    }
    const Vec before = Vec::loadu(maximum_ + row), raised = at::vec::maximum(before, Vec::loadu(sums));
    const Vec safe = at::vec::maximum(raised, Vec(kLowest)), fade = (before - safe).exp();
    raised.store(maximum_ + row);
    alignas(64) float lowered[kTileSide];
    safe.store(lowered);
    for (int64_t r = 0; r < kTileSide; r += 4) {
      Vec added[4];
      unrolled<4>([&](auto i) {
        const Vec top(lowered[r + i]);
        added[i] = Vec(0.f);
        for (int v = 0; v < VECTORS; v += 2) {
          const Vec first = rounded_exp(Vec::loadu(scores[r + i] + v * kLanes) * scale - top);
          const Vec second = rounded_exp(Vec::loadu(scores[r + i] + (v + 1) * kLanes) * scale - top);
          added[i] = added[i] + first;
          added[i] = added[i] + second;
          _mm512_store_si512(weights[r + i] + v * kLanes, (__m512i)_mm512_cvtne2ps_pbh(second, first));
        }
      });
      four_sums(added[0], added[1], added[2], added[3], sums + r);
    }
    at::vec::fmadd(Vec::loadu(total_ + row), fade, Vec::loadu(sums)).store(total_ + row);
    if (_mm512_cmp_ps_mask(raised, before, _CMP_NEQ_UQ) != 0) fade_rows(row, fade);
  }

  // A key behind the query, or before its window, weighs nothing.
  template <int VECTORS>
  void cut(float* scores, int64_t position, int64_t at) const {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto last = _mm512_set1_epi32(static_cast<int>(position - at));
    const auto first = _mm512_set1_epi32(static_cast<int>(first_seen(position) - at));
    for (int v = 0; v < VECTORS; ++v) {
      const __m512i token = _mm512_add_epi32(lanes, _mm512_set1_epi32(v * static_cast<int>(kLanes)));
      const __mmask16 seen = _mm512_cmple_epi32_mask(token, last) & _mm512_cmpge_epi32_mask(token, first);
      Vec s = Vec::loadu(scores + v * kLanes);
      if (how_.softcap > 0) s = (s * Vec(how_.scale) / Vec(how_.softcap)).tanh() * Vec(how_.softcap);
      Vec(_mm512_mask_blend_ps(seen, _mm512_set1_ps(hidden()), s)).store(scores + v * kLanes);
    }
  }

  // What becomes kNone with the scale that follows.
  float hidden() const { return how_.softcap <= 0 && how_.scale < 0 ? -kNone : kNone; }

  void fade_rows(int64_t row, const Vec& fade) {
    alignas(64) float factors[kTileSide];
    fade.store(factors);
    const int64_t d = shape_.head_dim;
    for (int64_t r = 0; r < kTileSide; ++r)
      if (factors[r] != 1.f)
        for (float *at = mixed() + (row + r) * d, *end = at + d; at < end; at += kLanes)
          (Vec::loadu(at) * Vec(factors[r])).store(at);
  }

  // Tiles 0 to 3 are the sums, 4 and 5 the weights, 6 and 7 the values.
  template <int SIDES>
  void mix(int64_t row, int64_t pairs) {
    const int64_t d = shape_.head_dim, stride = d * sizeof(float), step = d / kTileSide * kTileSize;
    const int32_t* values = packed_values_.data();
    before_tiles();
    for (int64_t i = 0; i < d; i += kPairColumns, values += 2 * kTileSize) {
      float* sums = mixed() + row * d + i;
      _tile_loadd(0, sums, stride);
      _tile_loadd(1, sums + kTileSide, stride);
      if constexpr (SIDES > 1) {
        _tile_loadd(2, sums + kTileSide * d, stride);
        _tile_loadd(3, sums + kTileSide * d + kTileSide, stride);
      }
      for (int64_t pair = 0; pair < pairs; ++pair) {
        _tile_loadd(4, weights_[0] + pair * kPairColumns, sizeof(weights_[0]));
        _tile_loadd(6, values + pair * step, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, values + pair * step + kTileSize, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (SIDES > 1) {
          _tile_loadd(5, weights_[kTileSide] + pair * kPairColumns, sizeof(weights_[0]));
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, sums, stride);
      _tile_stored(1, sums + kTileSide, stride);
      if constexpr (SIDES > 1) {
        _tile_stored(2, sums + kTileSide * d, stride);
        _tile_stored(3, sums + kTileSide * d + kTileSide, stride);
      }
    }
    before_tiles();
  }

  void write(const Prompt& prompt, const PromptTask& task, BFloat16* out) const {
    const int64_t d = shape_.head_dim;
    for (int64_t m = 0; m < task.rows; ++m) {
      const QueryRow row = row_of(prompt, task, shape_, m);
      BFloat16* to = out + (row.token * shape_.heads + row.head) * d;
      const Vec share(1.f / total_[m]);
      for (int64_t i = 0; i < d; i += kPairColumns) {
        const Vec front = Vec::loadu(mixed() + m * d + i), back = Vec::loadu(mixed() + m * d + i + kLanes);
        store_pair(to + i, Vec(in_columns(front, back, 0)) * share, Vec(in_columns(front, back, 1)) * share);
      }
    }
  }

  const Shape& shape_;
  const Pool &key_pool_, &value_pool_;
  const BFloat16 *keys_, *values_;
  const Scoring& how_;
  const int64_t window_;
  const AlignedWords queries_;        // [rows, head_dim]
  const AlignedWords packed_keys_, packed_values_;
  const AlignedWords mixed_;          // [rows, head_dim]
  const TileSettings tiles_;
  alignas(64) float scores_[kTileQueries][kOrderedBlock];
  alignas(64) BFloat16 weights_[kTileQueries][kOrderedBlock];
  alignas(64) float maximum_[kMostTileRows], total_[kMostTileRows];
  int32_t positions_[kMostTileRows];
};

}  // namespace millm

#endif
