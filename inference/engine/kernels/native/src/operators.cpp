// The operators millm_native::*, checked here and computed in the units beside. torch's stable interface takes a quarter
// of the time of its other headers to compile.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels.h"

namespace millm {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Optional = const TensorView*;
using Views = std::vector<TensorView>;

void parallel_for(int64_t begin, int64_t end, int64_t grain, const Loop& body) {
  torch::stable::parallel_for(begin, end, grain, body);
}

int64_t num_threads() { return torch::stable::get_num_threads(); }

TensorView view_of(const Tensor& tensor) {
  const int64_t dims = tensor.dim();
  STD_TORCH_CHECK(dims <= kMostDims, "a tensor of ", dims, " dimensions");
  TensorView view{tensor.data_ptr(), tensor.scalar_type(), static_cast<int64_t>(tensor.element_size()), dims, {}, {}};
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (int64_t i = 0; i < dims; ++i) view.sizes[i] = sizes[i], view.strides[i] = strides[i];
  return view;
}

std::optional<TensorView> view_of(const OptionalTensor& tensor) {
  return tensor ? std::optional(view_of(*tensor)) : std::nullopt;
}

Views views_of(const std::vector<Tensor>& tensors) {
  Views views;
  for (const Tensor& tensor : tensors) views.push_back(view_of(tensor));
  return views;
}

Optional pointer(const std::optional<TensorView>& view) { return view ? &*view : nullptr; }

// A contiguous view of other sizes, of the same type.
TensorView shaped(void* data, const TensorView& like, std::initializer_list<int64_t> sizes) {
  TensorView view{data, like.type, like.element_size, static_cast<int64_t>(sizes.size()), {}, {}};
  std::copy(sizes.begin(), sizes.end(), view.sizes);
  int64_t stride = 1;
  for (int64_t i = view.dims - 1; i >= 0; --i) {
    view.strides[i] = stride;
    stride *= view.sizes[i];
  }
  return view;
}

int64_t numel(const TensorView& view) {
  int64_t count = 1;
  for (int64_t i = 0; i < view.dims; ++i) count *= view.sizes[i];
  return count;
}

bool has_sizes_of(const TensorView& a, const TensorView& b) {
  return a.dims == b.dims && std::equal(a.sizes, a.sizes + a.dims, b.sizes);
}

bool is_contiguous(const TensorView& view) {
  int64_t stride = 1;
  for (int64_t i = view.dims - 1; i >= 0; --i) {
    if (view.sizes[i] != 1 && view.strides[i] != stride) return false;
    stride *= view.sizes[i];
  }
  return true;
}

bool is_vector_of(const TensorView& view, ScalarType type, int64_t count) {
  return view.type == type && numel(view) == count && is_contiguous(view);
}

bool is_float(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half;
}

// A new tensor on the CPU with the sizes and type of a contiguous view.
Tensor empty(const TensorView& view) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(view.dims, view.sizes, view.strides,
                                                  torch::stable::detail::to<int32_t>(torch::stable::detail::from(view.type)),
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

Tensor empty(const TensorView& like, std::initializer_list<int64_t> sizes) { return empty(shaped(nullptr, like, sizes)); }

// What comes between the parts of a layer.
class Buffer {
 public:
  Buffer(const TensorView& like, std::initializer_list<int64_t> sizes) : view(shaped(nullptr, like, sizes)) {
    memory_.reset(::operator new(static_cast<size_t>(numel(view) * view.element_size), kAlignment));
    view.data = memory_.get();
  }

  TensorView view;

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<void, Delete> memory_;
};

const float* sinks_of(Optional sinks, const TensorView& query) {
  STD_TORCH_CHECK(!sinks || is_vector_of(*sinks, ScalarType::Float, query.size(1)),
                  "sinks are float32, one for each head");
  return sinks ? sinks->as<float>() : nullptr;
}

void check_heads(std::string_view name, const TensorView& query, const TensorView& keys, const TensorView& values) {
  STD_TORCH_CHECK(query.dims == 3 && keys.dims == 4 && has_sizes_of(values, keys), name, ": shapes");
  STD_TORCH_CHECK(query.size(2) == keys.size(3) && query.size(1) % keys.size(2) == 0, name, ": heads");
  STD_TORCH_CHECK(is_float(query.type) && keys.type == query.type && values.type == query.type, name, ": dtypes differ");
  STD_TORCH_CHECK(query.stride(2) == 1 && keys.stride(3) == 1 && values.stride(3) == 1, name, ": strides");
}

void attend(const TensorView& query, const TensorView& keys, const TensorView& values, const TensorView& block_table,
            const TensorView& lengths, double scale, int64_t window, double softcap, Optional sinks, bool ordered,
            const TensorView& out) {
  check_heads("decode_attention", query, keys, values);
  STD_TORCH_CHECK(block_table.type == ScalarType::Int && block_table.dims == 2 && block_table.stride(1) == 1 &&
                      is_vector_of(lengths, ScalarType::Int, query.size(0)),
                  "decode_attention: block_table and lengths are int32 and contiguous");
  const Scoring how{static_cast<float>(scale), static_cast<float>(softcap), sinks_of(sinks, query)};
  decode_attention(query, keys, values, block_table, lengths, how, window, ordered, out);
}

Tensor decode_attention_op(const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& block_table,
                           const Tensor& lengths, double scale, int64_t window, double softcap,
                           const OptionalTensor& sinks, bool ordered) {
  const TensorView q = view_of(query);
  STD_TORCH_CHECK(q.dims == 3, "decode_attention: shapes");
  const Tensor out = empty(q, {q.size(0), q.size(1), q.size(2)});
  const auto sink = view_of(sinks);
  attend(q, view_of(keys), view_of(values), view_of(block_table), view_of(lengths), scale, window, softcap,
         pointer(sink), ordered, view_of(out));
  return out;
}

Tensor prompt_attention_op(const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& block_table,
                           const Tensor& starts, const Tensor& counts, double scale, int64_t window, double softcap,
                           const OptionalTensor& sinks, bool ordered) {
  const TensorView q = view_of(query), k = view_of(keys), v = view_of(values), table = view_of(block_table);
  const TensorView start = view_of(starts), count = view_of(counts);
  check_heads("prompt_attention", q, k, v);
  const int64_t lanes = features().vector_bytes / 4;
  STD_TORCH_CHECK(ordered || q.size(2) % lanes == 0, "prompt_attention: head_dim must be whole vectors of ", lanes);
  STD_TORCH_CHECK(table.type == ScalarType::Int && table.dims == 2 && table.stride(1) == 1,
                  "prompt_attention: block_table");
  for (const TensorView* row : {&start, &count})
    STD_TORCH_CHECK(is_vector_of(*row, ScalarType::Int, table.size(0)),
                    "prompt_attention: starts and counts are int32, one for each sequence");
  int64_t tokens = 0;
  for (int64_t i = 0; i < table.size(0); ++i) tokens += count.as<int32_t>()[i];
  STD_TORCH_CHECK(tokens == q.size(0), "prompt_attention: counts do not add up to the queries");
  const Tensor out = empty(q, {q.size(0), q.size(1), q.size(2)});
  const auto sink = view_of(sinks);
  const Scoring how{static_cast<float>(scale), static_cast<float>(softcap), sinks_of(pointer(sink), q)};
  prompt_attention(q, k, v, table, start, count, how, window, ordered, view_of(out));
  return out;
}

void write(const TensorView& keys, const TensorView& values, const TensorView& key, const TensorView& value,
           const TensorView& slot_mapping) {
  STD_TORCH_CHECK(is_vector_of(slot_mapping, ScalarType::Long, numel(slot_mapping)), "write_kv: slot_mapping");
  for (const auto& [pool, rows] : {std::pair{keys, key}, std::pair{values, value}}) {
    STD_TORCH_CHECK(rows.dims == 3 && pool.dims == 4 && rows.size(0) == numel(slot_mapping) &&
                        rows.size(1) == pool.size(2) && rows.size(2) == pool.size(3) && rows.type == pool.type,
                    "write_kv: rows do not fit the pool");
    STD_TORCH_CHECK(rows.stride(2) == 1 && pool.stride(3) == 1, "write_kv: strides");
    copy_rows(rows, slot_mapping.as<int64_t>(), pool);
  }
}

void write_kv_op(const Tensor& keys, const Tensor& values, const Tensor& key, const Tensor& value,
                 const Tensor& slot_mapping) {
  write(view_of(keys), view_of(values), view_of(key), view_of(value), view_of(slot_mapping));
}

// x and out: matrices.
void norm(const TensorView& x, const TensorView& weight, double eps, double offset, const TensorView& out) {
  STD_TORCH_CHECK(x.dims == 2 && x.stride(1) == 1 && is_float(x.type) && is_vector_of(weight, x.type, x.size(1)),
                  "rms_norm: weight");
  norm_rows(x, weight, eps, offset, out);
}

Tensor rms_norm_op(const Tensor& x, const Tensor& weight, double eps, double offset) {
  const TensorView whole = view_of(x);
  STD_TORCH_CHECK(whole.dims > 0, "rms_norm: no dimension");
  const int64_t d = whole.size(whole.dims - 1);
  const Tensor rows = whole.dims == 2 ? x : torch::stable::reshape(x, std::array<int64_t, 2>{-1, d});
  TensorView contiguous = whole;
  int64_t stride = 1;
  for (int64_t i = whole.dims - 1; i >= 0; stride *= whole.sizes[i--]) contiguous.strides[i] = stride;
  const Tensor out = empty(contiguous);
  const TensorView in = view_of(rows);
  norm(in, view_of(weight), eps, offset, shaped(out.data_ptr(), in, {in.size(0), d}));
  return out;
}

void rotate(const TensorView& x, Optional weight, double eps, double offset, const TensorView& cos,
            const TensorView& sin, const TensorView& out) {
  STD_TORCH_CHECK(x.dims == 3 && x.stride(2) == 1 && x.size(2) % 2 == 0 && is_float(x.type),
                  "norm_rotary: x is [tokens, heads, even]");
  STD_TORCH_CHECK(cos.dims == 2 && has_sizes_of(cos, sin) && cos.size(0) == x.size(0) && cos.size(1) == x.size(2) &&
                      cos.stride(1) == 1 && sin.stride(1) == 1 && cos.type == x.type && sin.type == x.type,
                  "norm_rotary: cos and sin are [tokens, head_dim]");
  STD_TORCH_CHECK(!weight || is_vector_of(*weight, x.type, x.size(2)), "norm_rotary: weight");
  rotate_rows(x, weight, eps, offset, cos, sin, out);
}

Tensor norm_rotary_op(const Tensor& x, const OptionalTensor& weight, double eps, double offset, const Tensor& cos,
                      const Tensor& sin) {
  const TensorView in = view_of(x);
  STD_TORCH_CHECK(in.dims == 3, "norm_rotary: x is [tokens, heads, even]");
  const Tensor out = empty(in, {in.size(0), in.size(1), in.size(2)});
  const auto norm = view_of(weight);
  rotate(in, pointer(norm), eps, offset, view_of(cos), view_of(sin), view_of(out));
  return out;
}

void gate(const TensorView& gate, const TensorView& up, const std::string& activation, const TensorView& out) {
  STD_TORCH_CHECK(gate.dims == 2 && has_sizes_of(gate, up) && gate.stride(1) == 1 && up.stride(1) == 1 &&
                      is_float(gate.type) && gate.type == up.type,
                  "gate_mul: two matrices of one shape");
  STD_TORCH_CHECK(activation == "silu" || activation == "gelu_tanh", "gate_mul: no activation ", activation);
  gate_rows(gate, up, activation == "silu" ? Activation::kSilu : Activation::kGeluTanh, out);
}

Tensor gate_mul_op(const Tensor& gates, const Tensor& up, const std::string& activation) {
  const TensorView in = view_of(gates);
  STD_TORCH_CHECK(in.dims == 2, "gate_mul: two matrices of one shape");
  const Tensor out = empty(in, {in.size(0), in.size(1)});
  gate(in, view_of(up), activation, view_of(out));
  return out;
}

void check_bias(Optional bias, const TensorView& x, int64_t count) {
  STD_TORCH_CHECK(!bias || is_vector_of(*bias, x.type, count), "a bias has the rows' type, one number a column");
}

// rounded: products with int8 weights round the activations to 8 bits.
struct ProductOptions {
  bool rounded, ordered;
};

constexpr int64_t kInterleaved = 16;  // columns
constexpr int64_t kWordBytes = 4, kAlignment = 64;

int64_t columns_of(const TensorView& weight) {
  return is_interleaved(weight) ? weight.size(0) * kInterleaved : weight.size(0);
}

int64_t width_of(const TensorView& weight) {
  return is_interleaved(weight) ? weight.size(1) * weight.size(3) : weight.size(1);
}

bool can_interleave(const TensorView& w) {
  const Features has = features();
  const bool has_dots =
      (w.type == ScalarType::BFloat16 && has.has_bf16) || (w.type == ScalarType::Char && has.has_int8);
  return has_dots && is_contiguous(w) && reinterpret_cast<uintptr_t>(w.data) % kAlignment == 0;
}

bool is_weight(const TensorView& w) {
  if (!is_interleaved(w)) return w.dims == 2 && is_contiguous(w);
  return w.size(2) == kInterleaved && w.size(3) * w.element_size == kWordBytes && can_interleave(w);
}

void interleave_op(const Tensor& weight) {
  const TensorView w = view_of(weight);
  STD_TORCH_CHECK(w.dims == 2 && can_interleave(w),
                  "interleave: an aligned matrix of bfloat16 or bytes, with dot products of them");
  STD_TORCH_CHECK(w.size(0) % kInterleaved == 0 && w.size(1) * w.element_size % kWordBytes == 0, "interleave: sizes");
  interleave(w);
}

// weight: a matrix of floats alone, or int8 with its scales and sums; x: rows of adjacent numbers.
void multiply(const TensorView& x, const Views& weight, Optional bias, const ProductOptions& how, const TensorView& out) {
  STD_TORCH_CHECK(weight.size() == 1 || weight.size() == 3, "a weight is one tensor, or three with int8");
  const TensorView& w = weight[0];
  STD_TORCH_CHECK(x.dims == 2 && is_weight(w) && x.size(1) == width_of(w) && x.stride(1) == 1, "a product: shapes");
  const int64_t n = columns_of(w);
  check_bias(bias, x, n);
  if (weight.size() == 1) {
    STD_TORCH_CHECK(w.type == x.type && is_float(x.type), "linear_rows: a weight and rows of one type of floats");
    return multiply_rows(x, w, bias, how.ordered, out);
  }
  const TensorView &scales = weight[1], &sums = weight[2];
  STD_TORCH_CHECK(w.type == ScalarType::Char && is_float(x.type), "linear_int8: dtypes");
  STD_TORCH_CHECK(is_vector_of(scales, ScalarType::Float, n) && is_vector_of(sums, ScalarType::Int, n),
                  "linear_int8: scales and sums");
  STD_TORCH_CHECK(!how.rounded || features().has_int8, "activations of 8 bits need dot products of bytes");
  multiply_int8(x, w, scales, sums, bias, how.rounded, how.ordered, out);
}

Tensor product(const Tensor& x, const Views& weight, const OptionalTensor& bias, const ProductOptions& how) {
  TensorView in = view_of(x);
  STD_TORCH_CHECK(in.dims == 2, "a product: shapes");
  const bool is_odd = is_interleaved(weight[0]) && in.stride(0) * in.element_size % kWordBytes != 0;
  const Tensor rows = in.stride(1) == 1 && !is_odd ? x : torch::stable::contiguous(x);
  in = view_of(rows);
  const Tensor out = empty(in, {in.size(0), columns_of(weight[0])});
  const auto added = view_of(bias);
  multiply(in, weight, pointer(added), how, view_of(out));
  return out;
}

Tensor linear_rows_op(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool ordered) {
  return product(x, {view_of(weight)}, bias, {false, ordered});
}

Tensor linear_int8_op(const Tensor& x, const Tensor& weight, const Tensor& scales, const Tensor& sums,
                      const OptionalTensor& bias, bool rounded, bool ordered) {
  return product(x, {view_of(weight), view_of(scales), view_of(sums)}, bias, {rounded, ordered});
}

// Whether a token's row has an entry whose activation must be given.
bool needs_given(const int64_t* rows, int64_t tokens, const SteeringTables& t) {
  for (int64_t i = 0; i < tokens; ++i) {
    if (!(t.flags[rows[i]] & kActs)) continue;
    const int32_t* slots = t.slots + rows[i] * t.width;
    for (int32_t k = 0; k < t.counts[rows[i]]; ++k)
      if (t.codes[slots[k] * kCodes + kIsGiven]) return true;
  }
  return false;
}

// The steered residuals, and how far each token moved as a share of its norm.
std::tuple<Tensor, Tensor> steer_op(const Tensor& hidden, const Tensor& rows, const Tensor& flags,
                                    const Tensor& vectors, const Tensor& norm_limits, const Tensor& counts,
                                    const Tensor& slots, const Tensor& read, const Tensor& write, const Tensor& numbers,
                                    const Tensor& codes, const OptionalTensor& given) {
  const TensorView h = view_of(hidden), row = view_of(rows), flag = view_of(flags), vector = view_of(vectors);
  const TensorView limit = view_of(norm_limits), count = view_of(counts), slot = view_of(slots), in = view_of(read);
  const TensorView out = view_of(write), number = view_of(numbers), code = view_of(codes);
  const auto activation = view_of(given);
  STD_TORCH_CHECK(h.dims == 2 && slot.dims == 2 && vector.dims == 2 && in.dims == 2 && number.dims == 2 &&
                      code.dims == 2, "steer: dimensions");
  const int64_t n = h.size(0), d = h.size(1), num_rows = numel(flag), entries = in.size(0);
  STD_TORCH_CHECK(is_float(h.type) && h.stride(1) == 1 && is_vector_of(row, ScalarType::Long, n),
                  "steer: one row per token of ", n, ", not ", numel(row));
  STD_TORCH_CHECK(is_vector_of(flag, ScalarType::Byte, num_rows) && is_vector_of(count, ScalarType::Int, num_rows) &&
                      is_vector_of(slot, ScalarType::Int, num_rows * slot.size(1)), "steer: rows of the tables");
  STD_TORCH_CHECK(is_vector_of(vector, ScalarType::Float, num_rows * d) && vector.size(1) == d &&
                      is_vector_of(limit, ScalarType::Float, num_rows), "steer: vectors");
  STD_TORCH_CHECK(in.size(1) == d && has_sizes_of(out, in) && number.size(1) == kNumbers && code.size(1) == kCodes &&
                      is_vector_of(in, ScalarType::Float, entries * d) &&
                      is_vector_of(out, ScalarType::Float, entries * d) &&
                      is_vector_of(number, ScalarType::Float, entries * kNumbers) &&
                      is_vector_of(code, ScalarType::Int, entries * kCodes), "steer: entries");
  STD_TORCH_CHECK(!activation || (activation->dims == 2 && activation->size(0) == n &&
                                  is_vector_of(*activation, ScalarType::Float, n * entries)),
                  "steer: given is [tokens, entries]");
  const int64_t* row_of = row.as<int64_t>();
  for (int64_t i = 0; i < n; ++i)
    STD_TORCH_CHECK(row_of[i] >= 0 && row_of[i] < num_rows, "steer: there is no row ", row_of[i]);
  const SteeringTables tables{flag.as<uint8_t>(), vector.as<float>(), limit.as<float>(), count.as<int32_t>(),
                              slot.as<int32_t>(), in.as<float>(), out.as<float>(), number.as<float>(),
                              code.as<int32_t>(), slot.size(1), entries, d};
  STD_TORCH_CHECK(activation || !needs_given(row_of, n, tables),
                  "steer: the row needs activations that were not given");
  const Tensor steered = empty(h, {n, d}), changes = empty(limit, {n});
  steer_rows(h, row_of, tables, activation ? activation->as<float>() : nullptr, view_of(steered),
             view_of(changes).as<float>());
  return {steered, changes};
}

// A product of a layer: its weight in one or more parts, and its bias.
struct Product {
  Views weight;
  std::optional<TensorView> bias;
};

struct NormNumbers {
  double eps, offset;
};

// What the attention of a layer needs. `after` is there where the result is normed before it is added.
struct AttentionPart {
  TensorView before;
  std::optional<TensorView> of_query, of_key, after;
  NormNumbers norms;
  Product qkv, out;
  TensorView cos, sin, keys, values, slots, table, lengths;
  double scale, softcap;
  int64_t window;
  ProductOptions how;
};

struct MlpPart {
  TensorView before;
  std::optional<TensorView> after;
  NormNumbers norms;
  Product gate_up, down;
  std::string activation;
  ProductOptions how;
};

// The end of a part: the product, normed if there is a norm, added to x.
void add_product(const TensorView& x, const TensorView& mixed, const Product& product, Optional after,
                 const NormNumbers& norms, const ProductOptions& how, const TensorView& to) {
  STD_TORCH_CHECK(columns_of(product.weight.at(0)) == x.size(1), "the last product has another width than x");
  if (after) {
    const Buffer plain(x, {to.size(0), to.size(1)});
    multiply(mixed, product.weight, pointer(product.bias), how, plain.view);
    norm(plain.view, *after, norms.eps, norms.offset, to);
  } else {
    multiply(mixed, product.weight, pointer(product.bias), how, to);
  }
  add_rows(x, to);
}

// to = x + attention(norm(x)) for one new token of each of n sequences, with what comes between as in a decoder layer:
// x [n, hidden].
void attention_part(const TensorView& x, const AttentionPart& part, const TensorView& to) {
  STD_TORCH_CHECK(x.dims == 2 && part.keys.dims == 4, "attention of a layer: shapes");
  const int64_t n = x.size(0), d = part.keys.size(3), of_keys = part.keys.size(2) * d;
  const int64_t of_queries = columns_of(part.qkv.weight.at(0)) - 2 * of_keys;
  STD_TORCH_CHECK(of_queries > 0 && of_queries % of_keys == 0, "attention of a layer: queries do not fit the keys");
  const auto [eps, offset] = part.norms;

  const Buffer normed(x, {n, x.size(1)}), joined(x, {n, of_queries + 2 * of_keys});
  norm(x, part.before, eps, offset, normed.view);
  multiply(normed.view, part.qkv.weight, pointer(part.qkv.bias), part.how, joined.view);
  const auto heads = [&](int64_t from, int64_t width) {
    TensorView view = shaped(joined.view.as<char>() + from * x.element_size, x, {n, width / d, d});
    view.strides[0] = joined.view.stride(0);
    return view;
  };
  const Buffer query(x, {n, of_queries / d, d}), key(x, {n, of_keys / d, d}), mixed(x, {n, of_queries / d, d});
  rotate(heads(0, of_queries), pointer(part.of_query), eps, offset, part.cos, part.sin, query.view);
  rotate(heads(of_queries, of_keys), pointer(part.of_key), eps, offset, part.cos, part.sin, key.view);
  write(part.keys, part.values, key.view, heads(of_queries + of_keys, of_keys), part.slots);
  attend(query.view, part.keys, part.values, part.table, part.lengths, part.scale, part.window, part.softcap, nullptr,
         part.how.ordered, mixed.view);
  add_product(x, shaped(mixed.view.data, x, {n, of_queries}), part.out, pointer(part.after), part.norms, part.how, to);
}

// to = x + down(activation(gate(norm(x))) * up(norm(x))).
void mlp_part(const TensorView& x, const MlpPart& part, const TensorView& to) {
  STD_TORCH_CHECK(x.dims == 2, "MLP of a layer: shapes");
  const int64_t n = x.size(0), width = columns_of(part.gate_up.weight.at(0)) / 2;
  const Buffer normed(x, {n, x.size(1)}), joined(x, {n, 2 * width}), mixed(x, {n, width});
  norm(x, part.before, part.norms.eps, part.norms.offset, normed.view);
  multiply(normed.view, part.gate_up.weight, pointer(part.gate_up.bias), part.how, joined.view);
  const auto half = [&](int64_t from) {
    TensorView view = shaped(joined.view.as<char>() + from * x.element_size, x, {n, width});
    view.strides[0] = joined.view.stride(0);
    return view;
  };
  gate(half(0), half(width), part.activation, mixed.view);
  add_product(x, mixed.view, part.down, pointer(part.after), part.norms, part.how, to);
}

// One or more layers, one after the other: `norms` has those before attention and MLP, after them, and of queries and keys of
// each layer; `weights` and `biases` have qkv, output, gate and up, and down of each. An empty tensor stands for none.
// looks [layers, 4] float64: scale, window, softcap, and which of `slots` and `tables` a layer uses.
Tensor decoder_stack_op(const Tensor& hidden, const std::vector<Tensor>& norms, double eps, double offset,
                        const std::vector<Tensor>& weights, const std::vector<Tensor>& biases, const Tensor& cos,
                        const Tensor& sin, const std::vector<Tensor>& keys, const std::vector<Tensor>& values,
                        const std::vector<Tensor>& slots, const std::vector<Tensor>& tables, const Tensor& lengths,
                        const Tensor& looks, const std::string& activation, bool rounded, bool ordered) {
  constexpr size_t kNorms = 6, kProducts = 4, kLooks = 4;
  const TensorView x = view_of(hidden), look = view_of(looks), cosines = view_of(cos), sines = view_of(sin);
  const TensorView length = view_of(lengths);
  const size_t layers = keys.size(), parts = layers ? weights.size() / layers / kProducts : 0;
  STD_TORCH_CHECK(x.dims == 2 && layers > 0 && values.size() == layers, "decoder_stack: shapes");
  STD_TORCH_CHECK(norms.size() == layers * kNorms && biases.size() == layers * kProducts && parts > 0 &&
                      weights.size() == layers * kProducts * parts, "decoder_stack: norms, weights and biases");
  STD_TORCH_CHECK(is_vector_of(look, ScalarType::Double, static_cast<int64_t>(layers * kLooks)), "decoder_stack: looks");
  const auto given = [](const Tensor& tensor) {
    return tensor.numel() ? std::optional(view_of(tensor)) : std::nullopt;
  };
  const auto product = [&](size_t layer, size_t number) {
    Product found{{}, given(biases[layer * kProducts + number])};
    for (size_t p = 0; p < parts; ++p)
      found.weight.push_back(view_of(weights[(layer * kProducts + number) * parts + p]));
    return found;
  };
  const Tensor result = empty(x, {x.size(0), x.size(1)});
  const Buffer attended(x, {x.size(0), x.size(1)}), between(x, {x.size(0), x.size(1)});
  const NormNumbers numbers{eps, offset};
  const ProductOptions how{rounded, ordered};
  TensorView at = x;
  for (size_t layer = 0; layer < layers; ++layer) {
    const Tensor* norm_of = norms.data() + layer * kNorms;
    const double* look_of = look.as<double>() + layer * kLooks;
    const auto group = static_cast<size_t>(look_of[3]);
    STD_TORCH_CHECK(group < slots.size() && group < tables.size(), "decoder_stack: a layer without slots");
    attention_part(at,
                   {view_of(norm_of[0]), given(norm_of[4]), given(norm_of[5]), given(norm_of[1]), numbers,
                    product(layer, 0), product(layer, 1), cosines, sines, view_of(keys[layer]), view_of(values[layer]),
                    view_of(slots[group]), view_of(tables[group]), length, look_of[0], look_of[2],
                    static_cast<int64_t>(look_of[1]), how},
                   attended.view);
    at = layer + 1 < layers ? between.view : view_of(result);
    mlp_part(attended.view,
             {view_of(norm_of[2]), given(norm_of[3]), numbers, product(layer, 2), product(layer, 3), activation, how},
             at);
  }
  return result;
}

std::tuple<int64_t, bool, bool, bool, bool> features_op() {
  const Features has = features();
  return {has.vector_bytes, has.has_bf16, has.has_int8, has.has_int16, has.has_tiles};
}

}  // namespace millm

STABLE_TORCH_LIBRARY(millm_native, m) {
  m.def("decode_attention(Tensor query, Tensor keys, Tensor values, Tensor block_table, Tensor lengths, float scale, "
        "int window, float softcap, Tensor? sinks=None, bool ordered=False) -> Tensor");
  m.def("prompt_attention(Tensor query, Tensor keys, Tensor values, Tensor block_table, Tensor starts, Tensor counts, "
        "float scale, int window, float softcap, Tensor? sinks=None, bool ordered=False) -> Tensor");
  m.def("write_kv(Tensor(a!) keys, Tensor(b!) values, Tensor key, Tensor value, Tensor slot_mapping) -> ()");
  m.def("rms_norm(Tensor x, Tensor weight, float eps, float offset) -> Tensor");
  m.def("norm_rotary(Tensor x, Tensor? weight, float eps, float offset, Tensor cos, Tensor sin) -> Tensor");
  m.def("gate_mul(Tensor gate, Tensor up, str activation) -> Tensor");
  m.def("decoder_stack(Tensor x, Tensor[] norms, float eps, float offset, Tensor[] weights, Tensor[] biases, "
        "Tensor cos, Tensor sin, Tensor(a!)[] keys, Tensor(b!)[] values, Tensor[] slots, Tensor[] tables, "
        "Tensor lengths, Tensor looks, str activation, bool rounded=False, bool ordered=False) -> Tensor");
  m.def("linear_rows(Tensor x, Tensor weight, Tensor? bias, bool ordered=False) -> Tensor");
  m.def("interleave(Tensor(a!) weight) -> ()");
  m.def("linear_int8(Tensor x, Tensor weight, Tensor scales, Tensor sums, Tensor? bias, bool rounded=False, "
        "bool ordered=False) -> Tensor");
  m.def("steer(Tensor hidden, Tensor rows, Tensor flags, Tensor vectors, Tensor norm_limits, Tensor counts, "
        "Tensor slots, Tensor read, Tensor write, Tensor numbers, Tensor codes, Tensor? given) -> (Tensor, Tensor)");
  m.def("features() -> (int, bool, bool, bool, bool)");
}

STABLE_TORCH_LIBRARY_IMPL(millm_native, CPU, m) {
  m.impl("decode_attention", TORCH_BOX(&millm::decode_attention_op));
  m.impl("prompt_attention", TORCH_BOX(&millm::prompt_attention_op));
  m.impl("write_kv", TORCH_BOX(&millm::write_kv_op));
  m.impl("rms_norm", TORCH_BOX(&millm::rms_norm_op));
  m.impl("norm_rotary", TORCH_BOX(&millm::norm_rotary_op));
  m.impl("gate_mul", TORCH_BOX(&millm::gate_mul_op));
  m.impl("decoder_stack", TORCH_BOX(&millm::decoder_stack_op));
  m.impl("linear_rows", TORCH_BOX(&millm::linear_rows_op));
  m.impl("interleave", TORCH_BOX(&millm::interleave_op));
  m.impl("linear_int8", TORCH_BOX(&millm::linear_int8_op));
  m.impl("steer", TORCH_BOX(&millm::steer_op));
}

STABLE_TORCH_LIBRARY_IMPL(millm_native, CompositeImplicitAutograd, m) {
  m.impl("features", TORCH_BOX(&millm::features_op));
}
