// The operators millm_native::*, checked here and computed in the headers beside.
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#if defined(__linux__)
#endif

#include "attention.h"
#include "layers.h"
#include "linear.h"
#include "prompt_attention.h"
#include "steering.h"
#include "wide_linear.h"

namespace millm {

#define MILLM_BY_TYPE(tensor, call)                                    \
  switch ((tensor).scalar_type()) {                                    \
    case at::kFloat: { using T = float; call; break; }                 \
    case at::kBFloat16: { using T = at::BFloat16; call; break; }       \
    case at::kHalf: { using T = at::Half; call; break; }               \
    default: TORCH_CHECK(false, "no kernel for ", (tensor).scalar_type()); \
  }

const float* sinks_of(const std::optional<at::Tensor>& sinks, const at::Tensor& query) {
  TORCH_CHECK(!sinks || (sinks->scalar_type() == at::kFloat && sinks->is_contiguous() && sinks->numel() == query.size(1)),
              "sinks are float32, one for each head");
  return sinks ? sinks->const_data_ptr<float>() : nullptr;
}

at::Tensor decode_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& block_table, const at::Tensor& lengths, double scale, int64_t window,
                            double softcap, const std::optional<at::Tensor>& sinks) {
  TORCH_CHECK(query.dim() == 3 && keys.dim() == 4 && values.sizes() == keys.sizes(), "decode_attention: shapes");
  TORCH_CHECK(query.size(2) == keys.size(3) && query.size(1) % keys.size(2) == 0, "decode_attention: heads");
  TORCH_CHECK(keys.scalar_type() == query.scalar_type() && values.scalar_type() == query.scalar_type(),
              "decode_attention: dtypes differ");
  TORCH_CHECK(query.stride(2) == 1 && keys.stride(3) == 1 && values.stride(3) == 1, "decode_attention: strides");
  TORCH_CHECK(block_table.scalar_type() == at::kInt && lengths.scalar_type() == at::kInt && lengths.is_contiguous() &&
                  block_table.stride(1) == 1 && lengths.size(0) == query.size(0),
              "decode_attention: block_table and lengths are int32 and contiguous");
  at::Tensor out = at::empty(query.sizes(), query.options());
  const Scoring how{static_cast<float>(scale), static_cast<float>(softcap), sinks_of(sinks, query)};
  MILLM_BY_TYPE(query, attend<T>(query, keys, values, block_table, lengths, how, window, out));
  return out;
}

at::Tensor prompt_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            const at::Tensor& block_table, const at::Tensor& starts, const at::Tensor& counts,
                            double scale, int64_t window, double softcap, const std::optional<at::Tensor>& sinks) {
  TORCH_CHECK(query.dim() == 3 && keys.dim() == 4 && values.sizes() == keys.sizes(), "prompt_attention: shapes");
  TORCH_CHECK(query.size(2) == keys.size(3) && query.size(1) % keys.size(2) == 0, "prompt_attention: heads");
  TORCH_CHECK(query.size(2) % kLanes == 0, "prompt_attention: head_dim must be whole vectors of ", kLanes);
  TORCH_CHECK(keys.scalar_type() == query.scalar_type() && values.scalar_type() == query.scalar_type(),
              "prompt_attention: dtypes differ");
  TORCH_CHECK(query.stride(2) == 1 && keys.stride(3) == 1 && values.stride(3) == 1, "prompt_attention: strides");
  for (const auto& row : {starts, counts})
    TORCH_CHECK(row.scalar_type() == at::kInt && row.is_contiguous() && row.size(0) == block_table.size(0),
                "prompt_attention: starts and counts are int32, one for each sequence");
  TORCH_CHECK(block_table.scalar_type() == at::kInt && block_table.stride(1) == 1, "prompt_attention: block_table");
  TORCH_CHECK(counts.sum().item<int64_t>() == query.size(0), "prompt_attention: counts do not add up to the queries");
  at::Tensor out = at::empty(query.sizes(), query.options());
  const Scoring how{static_cast<float>(scale), static_cast<float>(softcap), sinks_of(sinks, query)};
  MILLM_BY_TYPE(query, attend_prompts<T>(query, keys, values, block_table, starts, counts, how, window, out));
  return out;
}

void copy_rows(at::Tensor& pool, const at::Tensor& rows, const int64_t* slots) {
  const int64_t block_size = pool.size(1), heads = pool.size(2), size = pool.element_size();
  const int64_t bytes = pool.size(3) * size;
  char* to = static_cast<char*>(pool.mutable_data_ptr());
  const char* from = static_cast<const char*>(rows.const_data_ptr());
  at::parallel_for(0, rows.size(0), std::max<int64_t>(1, 65536 / (heads * bytes)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t block = slots[t] / block_size, offset = slots[t] % block_size;
      for (int64_t h = 0; h < heads; ++h)
        std::memcpy(to + (block * pool.stride(0) + offset * pool.stride(1) + h * pool.stride(2)) * size,
                    from + (t * rows.stride(0) + h * rows.stride(1)) * size, bytes);
    }
  });
}

void write_kv(at::Tensor keys, at::Tensor values, const at::Tensor& key, const at::Tensor& value,
              const at::Tensor& slot_mapping) {
  TORCH_CHECK(slot_mapping.scalar_type() == at::kLong && slot_mapping.is_contiguous(), "write_kv: slot_mapping");
  for (const auto& [pool, rows] : {std::pair{keys, key}, std::pair{values, value}}) {
    TORCH_CHECK(rows.dim() == 3 && rows.size(0) == slot_mapping.size(0) && rows.size(1) == pool.size(2) &&
                    rows.size(2) == pool.size(3) && rows.scalar_type() == pool.scalar_type(),
                "write_kv: rows do not fit the pool");
    TORCH_CHECK(rows.stride(2) == 1 && pool.stride(3) == 1, "write_kv: strides");
  }
  copy_rows(keys, key, slot_mapping.const_data_ptr<int64_t>());
  copy_rows(values, value, slot_mapping.const_data_ptr<int64_t>());
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  const int64_t d = x.size(-1);
  TORCH_CHECK(x.stride(-1) == 1 && weight.is_contiguous() && weight.numel() == d &&
                  weight.scalar_type() == x.scalar_type(), "rms_norm: weight");
  at::Tensor rows = x.reshape({-1, d}), out = at::empty(x.sizes(), x.options());
  MILLM_BY_TYPE(x, norm_rows<T>(rows, weight, eps, offset, out));
  return out;
}

at::Tensor norm_rotary(const at::Tensor& x, const std::optional<at::Tensor>& weight, double eps, double offset,
                       const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK(x.dim() == 3 && x.stride(2) == 1 && x.size(2) % 2 == 0, "norm_rotary: x is [tokens, heads, even]");
  TORCH_CHECK(cos.dim() == 2 && cos.sizes() == sin.sizes() && cos.size(0) == x.size(0) && cos.size(1) == x.size(2) &&
                  cos.stride(1) == 1 && sin.stride(1) == 1 && cos.scalar_type() == x.scalar_type() &&
                  sin.scalar_type() == x.scalar_type(), "norm_rotary: cos and sin are [tokens, head_dim]");
  TORCH_CHECK(!weight || (weight->is_contiguous() && weight->numel() == x.size(2) &&
                          weight->scalar_type() == x.scalar_type()), "norm_rotary: weight");
  at::Tensor out = at::empty(x.sizes(), x.options());
  MILLM_BY_TYPE(x, rotate_rows<T>(x, weight, eps, offset, cos, sin, out));
  return out;
}

at::Tensor gate_mul(const at::Tensor& gate, const at::Tensor& up, c10::string_view activation) {
  TORCH_CHECK(gate.dim() == 2 && gate.sizes() == up.sizes() && gate.stride(1) == 1 && up.stride(1) == 1 &&
                  gate.scalar_type() == up.scalar_type(), "gate_mul: two matrices of one shape");
  TORCH_CHECK(activation == "silu" || activation == "gelu_tanh", "gate_mul: no activation ", activation);
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  if (activation == "silu") {
    MILLM_BY_TYPE(gate, (gate_rows<T, Silu>(gate, up, out)));
  } else {
    MILLM_BY_TYPE(gate, (gate_rows<T, GeluTanh>(gate, up, out)));
  }
  return out;
}

at::Tensor linear_rows(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() == 2 && weight.is_contiguous() && x.size(1) == weight.size(1) &&
                  weight.scalar_type() == x.scalar_type(), "linear_rows: shapes and dtypes");
  TORCH_CHECK(!bias || (bias->is_contiguous() && bias->scalar_type() == x.scalar_type()), "linear_rows: bias");
  const at::Tensor rows = x.stride(1) == 1 ? x : x.contiguous();
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
  switch (x.scalar_type()) {
    case at::kBFloat16: {
      const at::BFloat16* added = bias ? bias->const_data_ptr<at::BFloat16>() : nullptr;
#if MILLM_BF16_DOT
      multiply_bf16(rows, weight, added, out);
#else
      multiply_wide<at::BFloat16, at::BFloat16>(rows, weight, nullptr, added, out);
#endif
      break;
    }
    case at::kHalf:
      multiply_wide<at::Half, at::Half>(rows, weight, nullptr, bias ? bias->const_data_ptr<at::Half>() : nullptr, out);
      break;
    default: TORCH_CHECK(false, "linear_rows: no ", x.scalar_type());
  }
  return out;
}

at::Tensor linear_int8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scales, const at::Tensor& sums,
                       const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(x.dim() == 2 && weight.is_contiguous() && x.size(1) == weight.size(1) &&
                  weight.scalar_type() == at::kChar, "linear_int8: shapes");
  TORCH_CHECK(scales.scalar_type() == at::kFloat && sums.scalar_type() == at::kInt && scales.is_contiguous() &&
                  sums.is_contiguous() && scales.numel() == weight.size(0) && sums.numel() == weight.size(0),
              "linear_int8: scales and sums");
  TORCH_CHECK(!bias || (bias->is_contiguous() && bias->scalar_type() == x.scalar_type()), "linear_int8: bias");
  const at::Tensor rows = x.stride(1) == 1 ? x : x.contiguous();
  at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options());
#if MILLM_INT8_DOT
  MILLM_BY_TYPE(x, multiply_int8<T>(rows, weight, scales, sums, bias ? bias->const_data_ptr<T>() : nullptr, out));
#else
  MILLM_BY_TYPE(x, (multiply_wide<T, int8_t>(rows, weight, scales.const_data_ptr<float>(),
                                             bias ? bias->const_data_ptr<T>() : nullptr, out)));
#endif
  return out;
}

// The steered residuals, and how far each token moved as a share of its norm.
std::tuple<at::Tensor, at::Tensor> steer(const at::Tensor& hidden, const at::Tensor& rows, const at::Tensor& flags,
                                         const at::Tensor& vectors, const at::Tensor& norm_limits,
                                         const at::Tensor& counts, const at::Tensor& slots, const at::Tensor& read,
                                         const at::Tensor& write, const at::Tensor& numbers, const at::Tensor& codes,
                                         const std::optional<at::Tensor>& given) {
  const int64_t n = hidden.size(0), d = hidden.size(1), num_rows = flags.size(0), entries = read.size(0);
  TORCH_CHECK(hidden.dim() == 2 && hidden.stride(1) == 1 && rows.numel() == n && rows.is_contiguous() &&
                  rows.scalar_type() == at::kLong, "steer: one row per token of ", n, ", not ", rows.numel());
  TORCH_CHECK(flags.scalar_type() == at::kByte && counts.scalar_type() == at::kInt && slots.scalar_type() == at::kInt &&
                  codes.scalar_type() == at::kInt && counts.size(0) == num_rows && slots.size(0) == num_rows &&
                  flags.is_contiguous() && counts.is_contiguous() && slots.is_contiguous(), "steer: rows of the tables");
  TORCH_CHECK(vectors.size(0) == num_rows && norm_limits.numel() == num_rows && vectors.size(1) == d && read.size(1) == d && write.sizes() == read.sizes() &&
                  numbers.size(0) == entries && numbers.size(1) == kNumbers && codes.size(0) == entries &&
                  codes.size(1) == kCodes, "steer: shapes of the tables");
  for (const at::Tensor* table : {&vectors, &norm_limits, &read, &write, &numbers})
    TORCH_CHECK(table->is_contiguous() && table->scalar_type() == at::kFloat, "steer: tables are float32");
  TORCH_CHECK(codes.is_contiguous() && (!given || (given->is_contiguous() && given->scalar_type() == at::kFloat &&
                  given->size(0) == n && given->size(1) == entries)), "steer: given is [tokens, entries]");
  const int64_t* row = rows.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < n; ++i) TORCH_CHECK(row[i] >= 0 && row[i] < num_rows, "steer: there is no row ", row[i]);
  const SteeringTables tables{flags.const_data_ptr<uint8_t>(), vectors.const_data_ptr<float>(),
                              norm_limits.const_data_ptr<float>(),
                              counts.const_data_ptr<int32_t>(), slots.const_data_ptr<int32_t>(),
                              read.const_data_ptr<float>(), write.const_data_ptr<float>(),
                              numbers.const_data_ptr<float>(), codes.const_data_ptr<int32_t>(),
                              slots.size(1), entries, d};
  at::Tensor out = at::empty(hidden.sizes(), hidden.options());
  at::Tensor changes = at::empty({n}, hidden.options().dtype(at::kFloat));
  MILLM_BY_TYPE(hidden, steer_rows<T>(hidden, row, tables, given ? given->const_data_ptr<float>() : nullptr, out,
                                      changes.mutable_data_ptr<float>()));
  return {out, changes};
}

// weight: a matrix of 16 bits alone, or int8 with its scales and sums.
at::Tensor product(const at::Tensor& x, at::TensorList weight, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(weight.size() == 1 || weight.size() == 3, "a weight is one tensor, or three with int8");
  return weight.size() == 1 ? linear_rows(x, weight[0], bias) : linear_int8(x, weight[0], weight[1], weight[2], bias);
}

// x + attention(norm(x)) for one new token of each of n sequences, with what comes between as in a decoder layer:
// x [n, hidden]; out_norm is there where the result is normed before it is added.
at::Tensor attention_step(const at::Tensor& x, const at::Tensor& in_norm, const std::optional<at::Tensor>& query_norm,
                          const std::optional<at::Tensor>& key_norm, const std::optional<at::Tensor>& out_norm,
                          double eps, double offset, at::TensorList qkv, const std::optional<at::Tensor>& qkv_bias,
                          at::TensorList out_weight, const std::optional<at::Tensor>& out_bias, const at::Tensor& cos,
                          const at::Tensor& sin, at::Tensor keys, at::Tensor values, const at::Tensor& slot_mapping,
                          const at::Tensor& block_table, const at::Tensor& lengths, double scale, int64_t window,
                          double softcap) {
  const int64_t n = x.size(0), d = keys.size(3), of_keys = keys.size(2) * d;
  const at::Tensor joined = product(rms_norm(x, in_norm, eps, offset), qkv, qkv_bias);
  const int64_t of_queries = joined.size(1) - 2 * of_keys;
  TORCH_CHECK(of_queries > 0 && of_queries % of_keys == 0, "attention_step: queries do not fit the keys");
  const auto heads = [&](int64_t from, int64_t width) { return joined.narrow(1, from, width).view({n, width / d, d}); };
  const at::Tensor query = norm_rotary(heads(0, of_queries), query_norm, eps, offset, cos, sin);
  const at::Tensor key = norm_rotary(heads(of_queries, of_keys), key_norm, eps, offset, cos, sin);
  write_kv(keys, values, key, heads(of_queries + of_keys, of_keys), slot_mapping);
  const at::Tensor mixed = decode_attention(query, keys, values, block_table, lengths, scale, window, softcap, std::nullopt);
  at::Tensor out = product(mixed.view({n, of_queries}), out_weight, out_bias);
  if (out_norm) out = rms_norm(out, *out_norm, eps, offset);
  return out.add_(x);
}

// x + down(activation(gate(norm(x))) * up(norm(x))).
at::Tensor mlp_step(const at::Tensor& x, const at::Tensor& in_norm, const std::optional<at::Tensor>& out_norm,
                    double eps, double offset, at::TensorList gate_up, const std::optional<at::Tensor>& gate_up_bias,
                    at::TensorList down, const std::optional<at::Tensor>& down_bias, c10::string_view activation) {
  const at::Tensor joined = product(rms_norm(x, in_norm, eps, offset), gate_up, gate_up_bias);
  const int64_t width = joined.size(1) / 2;
  const at::Tensor mixed = gate_mul(joined.narrow(1, 0, width), joined.narrow(1, width, width), activation);
  at::Tensor out = product(mixed, down, down_bias);
  if (out_norm) out = rms_norm(out, *out_norm, eps, offset);
  return out.add_(x);
}

// What the build holds: vector bytes, whether the processor's dot products of bfloat16 and of bytes are in it, and
// whether bytes are multiplied as 16-bit integers.
std::tuple<int64_t, bool, bool, bool> features() {
  return {kLanes * 4, MILLM_BF16_DOT != 0, MILLM_INT8_DOT != 0, MILLM_INT16_PAIRS != 0 && MILLM_INT8_DOT == 0};
}

}  // namespace millm

TORCH_LIBRARY(millm_native, m) {
  m.def("decode_attention(Tensor query, Tensor keys, Tensor values, Tensor block_table, Tensor lengths, float scale, "
        "int window, float softcap, Tensor? sinks=None) -> Tensor");
  m.def("prompt_attention(Tensor query, Tensor keys, Tensor values, Tensor block_table, Tensor starts, Tensor counts, "
        "float scale, int window, float softcap, Tensor? sinks=None) -> Tensor");
  m.def("write_kv(Tensor(a!) keys, Tensor(b!) values, Tensor key, Tensor value, Tensor slot_mapping) -> ()");
  m.def("rms_norm(Tensor x, Tensor weight, float eps, float offset) -> Tensor");
  m.def("norm_rotary(Tensor x, Tensor? weight, float eps, float offset, Tensor cos, Tensor sin) -> Tensor");
  m.def("gate_mul(Tensor gate, Tensor up, str activation) -> Tensor");
  m.def("attention_step(Tensor x, Tensor in_norm, Tensor? query_norm, Tensor? key_norm, Tensor? out_norm, float eps, "
        "float offset, Tensor[] qkv, Tensor? qkv_bias, Tensor[] out_weight, Tensor? out_bias, Tensor cos, Tensor sin, "
        "Tensor(a!) keys, Tensor(b!) values, Tensor slot_mapping, Tensor block_table, Tensor lengths, float scale, "
        "int window, float softcap) -> Tensor");
  m.def("mlp_step(Tensor x, Tensor in_norm, Tensor? out_norm, float eps, float offset, Tensor[] gate_up, "
        "Tensor? gate_up_bias, Tensor[] down, Tensor? down_bias, str activation) -> Tensor");
  m.def("linear_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
  m.def("linear_int8(Tensor x, Tensor weight, Tensor scales, Tensor sums, Tensor? bias) -> Tensor");
  m.def("steer(Tensor hidden, Tensor rows, Tensor flags, Tensor vectors, Tensor norm_limits, Tensor counts, "
        "Tensor slots, Tensor read, Tensor write, Tensor numbers, Tensor codes, Tensor? given) -> (Tensor, Tensor)");
  m.def("features() -> (int, bool, bool, bool)", &millm::features);
}

TORCH_LIBRARY_IMPL(millm_native, CPU, m) {
  m.impl("decode_attention", &millm::decode_attention);
  m.impl("prompt_attention", &millm::prompt_attention);
  m.impl("write_kv", &millm::write_kv);
  m.impl("rms_norm", &millm::rms_norm);
  m.impl("norm_rotary", &millm::norm_rotary);
  m.impl("gate_mul", &millm::gate_mul);
  m.impl("attention_step", &millm::attention_step);
  m.impl("mlp_step", &millm::mlp_step);
  m.impl("linear_rows", &millm::linear_rows);
  m.impl("linear_int8", &millm::linear_int8);
  m.impl("steer", &millm::steer);
}
