// The kernels, each in a unit of its own so that they are compiled side by side. Arguments were checked in
// operators.cpp; `out` is contiguous.
#pragma once

#include "tensor_view.h"

namespace millm {

// What the build holds: vector bytes, whether the processor's dot products of bfloat16 and of bytes are in it, whether
// bytes are multiplied as 16-bit integers, and whether products of many rows use tiles.
struct Features {
  int64_t vector_bytes;
  bool has_bf16, has_int8, has_int16, has_tiles;
};
Features features();

// sinks: for each head a score that takes its share of the weights and has no value (gpt-oss); null where there are none.
struct Scoring {
  float scale, softcap;
  const float* sinks = nullptr;
};

// Ordered: the order of a query's sums depends on its position only, and is the same in both.
void decode_attention(const TensorView& query, const TensorView& keys, const TensorView& values,
                      const TensorView& table, const TensorView& lengths, const Scoring& how, int64_t window,
                      bool ordered, const TensorView& out);
void prompt_attention(const TensorView& query, const TensorView& keys, const TensorView& values,
                      const TensorView& table, const TensorView& starts, const TensorView& counts, const Scoring& how,
                      int64_t window, bool ordered, const TensorView& out);
void copy_rows(const TensorView& rows, const int64_t* slots, const TensorView& pool);

// offset: 1 where the stored weight is a difference from one (Gemma), else 0.
void norm_rows(const TensorView& x, const TensorView& weight, double eps, double offset, const TensorView& out);
// x [tokens, heads, d], cos and sin [tokens, d]; weight null: rotation only. Halves rotate, as in Llama.
void rotate_rows(const TensorView& x, const TensorView* weight, double eps, double offset, const TensorView& cos,
                 const TensorView& sin, const TensorView& out);
// activation(gate) * up
enum class Activation { kSilu, kGeluTanh };
void gate_rows(const TensorView& gate, const TensorView& up, Activation activation, const TensorView& out);
void add_rows(const TensorView& x, const TensorView& out);  // out += x

// Rearranges the weight [n, k] to [n / 16, words, 16, numbers of a word], a word of sixteen outputs after the other. Of
// bfloat16 and bytes, where the processor has dot products of them; n in blocks of sixteen, k in words of four bytes.
void interleave(const TensorView& weight);
inline bool is_interleaved(const TensorView& weight) { return weight.dims == 4; }

// Products with a weight [n, k], or interleaved, of the rows' type, or of bytes; bias may be null. Ordered: the order in which the
// products of one result are added does not depend on the number of rows. Rounded: activations become 8-bit integers,
// which needs the processor's dot products of bytes (elsewhere they would gain nothing and keep 16 bits).
void multiply_rows(const TensorView& x, const TensorView& weight, const TensorView* bias, bool ordered,
                   const TensorView& out);
void multiply_int8(const TensorView& x, const TensorView& weight, const TensorView& scales, const TensorView& sums,
                   const TensorView* bias, bool rounded, bool ordered, const TensorView& out);

enum RowFlag : uint8_t { kActs = 1, kHasVector = 2, kKeepsNorm = 4 };
enum Number { kBias, kThreshold, kGainLessOne, kOffset, kLower, kUpper, kFloor, kNormLimit, kNumbers };
enum Code { kRow, kGate, kIsGiven, kNormalization, kCodes };

struct SteeringTables {
  const uint8_t* flags;    // [rows]
  const float* vectors;    // [rows, d]
  const float* limits;     // [rows]: above which norm of the residual the vector is not added
  const int32_t* counts;   // [rows]: entries of each row
  const int32_t* slots;    // [rows, width]: which they are
  const float* read;       // [entries, d]
  const float* write;      // [entries, d]
  const float* numbers;    // [entries, kNumbers]
  const int32_t* codes;    // [entries, kCodes]
  int64_t width, entries, d;
};

// `changes` [tokens] has each token's relative change, 0 where nothing acted; given [tokens, entries] may be null where
// no entry of the rows asks for it.
void steer_rows(const TensorView& hidden, const int64_t* rows, const SteeringTables& tables, const float* given,
                const TensorView& out, float* changes);

}  // namespace millm
