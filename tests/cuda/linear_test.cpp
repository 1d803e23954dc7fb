// Matrix products of the CUDA backend against float64, on random odd shapes.
#include "backends/cuda/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "backends/cuda/matmul.h"
#include "cuda/device_memory.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;

struct Shape {
  std::int64_t tokens;
  std::int64_t out_features;
  std::int64_t in_features;
};

// One product on the host and on the device, with weights that keep the sums near 1.
class Product {
 public:
  Product(Shape shape, DType dtype, DType out_dtype, bool has_bias, std::mt19937& random)
      : shape_(shape),
        x_(dtype, shape.tokens, shape.in_features, random),
        weight_(dtype, shape.out_features, shape.in_features, random,
                1.0F / std::sqrt(static_cast<float>(shape.in_features))),
        bias_(DType::kF32, 1, shape.out_features, random),
        out_(out_dtype, shape.tokens, shape.out_features, random),
        has_bias_(has_bias),
        x_values_(floats(x_.tensor())),
        weight_values_(floats(weight_.tensor())),
        device_x_(x_.tensor()),
        device_weight_(weight_.tensor()),
        device_bias_(bias_.vector()),
        device_out_(out_.tensor()) {
    device_out_.poison();
  }

  const Tensor& x() const { return device_x_.tensor(); }
  const Tensor& weight() const { return device_weight_.tensor(); }
  Tensor bias() const { return has_bias_ ? device_bias_.tensor() : Tensor(); }
  const Tensor& out() const { return device_out_.tensor(); }

  void poison() const { device_out_.poison(); }
  // out as the device has it now.
  const Matrix& result() const {
    device_out_.download(out_.tensor());
    return out_;
  }
  double expected(std::int64_t token, std::int64_t row) const {
    double sum = has_bias_ ? bias_.at(0, row) : 0.0;
    const float* x = x_values_.data() + token * shape_.in_features;
    const float* weight = weight_values_.data() + row * shape_.in_features;
    for (std::int64_t k = 0; k < shape_.in_features; ++k) sum += double{x[k]} * double{weight[k]};
    return sum;
  }
  void expect_right() const {
    const DType dtype = result().tensor().dtype();
    const double relative = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 1e-3 : 8e-3;
    int wrong = 0;
    for (std::int64_t t = 0; t < shape_.tokens; ++t) {
      for (std::int64_t o = 0; o < shape_.out_features; ++o) {
        const double value = expected(t, o);
        const bool right = std::abs(out_.at(t, o) - value) <= relative * (std::abs(value) + 1);
        if (!right && wrong++ == 0) {
          ADD_FAILURE() << "token " << t << ", row " << o << ": " << out_.at(t, o) << ", not " << value;
        }
      }
    }
    EXPECT_EQ(wrong, 0) << "elements of [" << shape_.tokens << ", " << shape_.out_features << ", "
                        << shape_.in_features << "], " << x().describe() << " to " << out().describe();
  }

 private:
  static std::vector<float> floats(const Tensor& matrix) {
    std::vector<float> values(static_cast<std::size_t>(matrix.numel()));
    convert(matrix.dtype(), matrix.data(), DType::kF32, values.data(), values.size());
    return values;
  }

  Shape shape_;
  Matrix x_;
  Matrix weight_;
  Matrix bias_;
  Matrix out_;
  bool has_bias_;
  std::vector<float> x_values_;
  std::vector<float> weight_values_;
  DeviceTensor device_x_;
  DeviceTensor device_weight_;
  DeviceTensor device_bias_;
  DeviceTensor device_out_;
};

// The library with its workspace.
class Library {
 public:
  LibraryMatmul* get() { return &library_; }

 private:
  static Tensor workspace() {
    static std::vector<std::byte> bytes(LibraryMatmul::kWorkspaceBytes);
    return Tensor(bytes.data(), DType::kU8, {std::ssize(bytes)});
  }

  DeviceTensor memory_{workspace()};
  LibraryMatmul library_{memory_.tensor()};
};

class LinearTest : public testing::DeviceTest {
 protected:
  // For every combination of dtypes and with a bias or without.
  template <typename Function>
  void for_each_product(Shape shape, const Function& function) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType out_dtype : {dtype, DType::kF32}) {
        for (const bool has_bias : {false, true}) {
          function(Product(shape, dtype, out_dtype, has_bias, random_));
        }
        if (dtype == DType::kF32) break;
      }
    }
  }

  std::mt19937 random_{5};
};

TEST_F(LinearTest, FixedOrderIsRightForAnyShapeAndType) {
  for (const Shape shape :
       {Shape{1, 64, 64}, Shape{2, 1, 1}, Shape{3, 67, 33}, Shape{5, 200, 136}, Shape{8, 9, 1031},
        Shape{9, 130, 24}, Shape{16, 64, 264}, Shape{17, 65, 100}, Shape{255, 131, 200}}) {
    for_each_product(shape, [&](const Product& product) {
      fixed_order_matmul(context_, product.out(), product.x(), product.weight(), product.bias());
      product.expect_right();
    });
  }
}

TEST_F(LinearTest, FixedOrderGivesARowTheSameBitsInAnyBatch) {
  for_each_product({150, 100, 200}, [&](const Product& product) {
    fixed_order_matmul(context_, product.out(), product.x(), product.weight(), product.bias());
    const std::vector<std::byte> together = product.result().bytes();
    for (const std::int64_t count : {1, 7, 64, 65}) {
      product.poison();
      for (std::int64_t row = 0; row < 150; row += count) {
        const std::int64_t rows = std::min<std::int64_t>(count, 150 - row);
        fixed_order_matmul(context_, product.out().rows(row, rows), product.x().rows(row, rows),
                           product.weight(), product.bias());
      }
      EXPECT_EQ(product.result().bytes(), together) << count << " tokens at a time";
    }
  });
}

TEST_F(LinearTest, MatvecIsRightForAnyShapeAndType) {
  // Rows of the weight: fewer than an SM's group, some groups an SM, many, not a multiple of 8. Columns:
  // fewer than one warp takes, several units of a warp, more than its ring.
  for (const Shape shape : {Shape{1, 1, 8}, Shape{1, 1000, 2048}, Shape{2, 4096, 1024}, Shape{3, 2117, 72},
                            Shape{5, 300, 136}, Shape{7, 1024, 3072}, Shape{8, 70, 5000}, Shape{9, 1024, 520},
                            Shape{11, 12345, 264}, Shape{16, 130, 5000}, Shape{16, 2500, 1024}}) {
    for_each_product(shape, [&](const Product& product) {
      if (product.x().dtype() == DType::kF32) return;
      ASSERT_TRUE(matvec_supports(context_, product.x(), product.weight()));
      LaunchContext small = context_;  // a device whose blocks have less memory
      small.shared_bytes = 99 * 1024;
      for (const LaunchContext& context : {context_, small}) {
        product.poison();
        matvec(context, product.out(), product.x(), product.weight(), product.bias());
        product.expect_right();
      }
    });
  }
}

TEST_F(LinearTest, MatvecLeavesOtherShapesAlone) {
  for (const Shape shape : {Shape{17, 8, 8}, Shape{1, 8, 12}}) {
    const Product product(shape, DType::kBF16, DType::kBF16, false, random_);
    EXPECT_FALSE(matvec_supports(context_, product.x(), product.weight()));
  }
  const Product floats({1, 8, 8}, DType::kF32, DType::kF32, false, random_);
  EXPECT_FALSE(matvec_supports(context_, floats.x(), floats.weight()));
}

TEST_F(LinearTest, GatedMatvecIsTheActivatedGateTimesUp) {
  for (const auto& [dtype, activation] :
       {std::pair{DType::kBF16, Activation::kSilu}, std::pair{DType::kF16, Activation::kSilu},
        std::pair{DType::kBF16, Activation::kGelu}, std::pair{DType::kF16, Activation::kGelu}}) {
    for (const Shape shape :
         {Shape{1, 3072, 1024}, Shape{2, 65, 8}, Shape{5, 1500, 200}, Shape{16, 2200, 1032}}) {
      const Product gate_up({shape.tokens, shape.out_features * 2, shape.in_features}, dtype, dtype, false,
                            random_);
      Matrix out(dtype, shape.tokens, shape.out_features, random_);
      const DeviceTensor device_out(out.tensor());
      device_out.poison();
      matvec(context_, device_out.tensor(), gate_up.x(), gate_up.weight(), {}, activation);
      device_out.download(out.tensor());
      for (std::int64_t t = 0; t < shape.tokens; ++t) {
        for (std::int64_t o = 0; o < shape.out_features; ++o) {
          const double gate = gate_up.expected(t, o);
          const double value =
              quire::testing::activated(gate, activation) * gate_up.expected(t, o + shape.out_features);
          const double relative = dtype == DType::kF16 ? 1e-3 : 8e-3;
          ASSERT_NEAR(out.at(t, o), value, relative * (std::abs(value) + 1)) << t << ", " << o;
        }
      }
    }
  }
}

TEST_F(LinearTest, LinearIsRightByWhateverPathItTakes) {
  Library library;
  for (const std::int64_t tokens : {1, 2, 3, 5, 8, 9, 16, 17, 255}) {
    for (const Shape shape : {Shape{tokens, 264, 136}, Shape{tokens, 67, 33}, Shape{tokens, 80, 128}}) {
      for_each_product(shape, [&](const Product& product) {
        for (LibraryMatmul* const path : {library.get(), static_cast<LibraryMatmul*>(nullptr)}) {
          product.poison();
          linear(context_, path, product.out(), product.x(), product.weight(), product.bias());
          product.expect_right();
        }
      });
    }
  }
}

TEST_F(LinearTest, ProductsAreRightInAReplayedGraph) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  context_.stream = stream;
  Library library;
  for (const std::int64_t tokens : {1, 16, 40}) {
    const Product product({tokens, 520, 264}, DType::kBF16, DType::kF32, true, random_);
    const auto run = [&] {
      linear(context_, library.get(), product.out(), product.x(), product.weight(), product.bias());
    };
    run();  // the library chooses
    check(cudaStreamSynchronize(stream), "a product");
    product.poison();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "a graph");
    run();
    run();
    check(cudaStreamEndCapture(stream, &graph), "a graph");
    check(cudaGraphInstantiate(&executable, graph, 0), "a graph");
    check(cudaGraphLaunch(executable, stream), "a graph");
    product.expect_right();
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

TEST_F(LinearTest, RowsOfXMayBeStrided) {
  Library library;
  for (const std::int64_t tokens : {6, 12, 30}) {
    const Product wide({tokens, 40, 80}, DType::kBF16, DType::kF32, false, random_);
    const Product narrow({tokens, 40, 48}, DType::kBF16, DType::kF32, false, random_);
    // Columns 8 to 55 of a wider x, against those columns as a matrix of their own.
    const Tensor columns = wide.x().columns(8, 48);
    check(cudaMemcpy2D(narrow.x().data(), 48 * 2, columns.data(), 80 * 2, 48 * 2,
                       static_cast<std::size_t>(tokens), cudaMemcpyDeviceToDevice),
          "copy");
    for (LibraryMatmul* const path : {library.get(), static_cast<LibraryMatmul*>(nullptr)}) {
      linear(context_, path, narrow.out(), columns, narrow.weight(), {});
      const std::vector<double> strided = narrow.result().values();
      narrow.poison();
      linear(context_, path, narrow.out(), narrow.x(), narrow.weight(), {});
      const std::vector<double> dense = narrow.result().values();
      for (std::size_t i = 0; i < dense.size(); ++i) ASSERT_NEAR(strided[i], dense[i], 1e-4);
    }
  }
}

TEST_F(LinearTest, AddBiasAddsToEveryRow) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Matrix values(dtype, 3, 301, random_);
    const Matrix bias(DType::kF32, 1, 301, random_);
    Matrix sums(dtype, 3, 301, random_);
    const DeviceTensor device_values(values.tensor());
    const DeviceTensor device_bias(bias.vector());
    add_bias(context_, device_values.tensor(), device_bias.tensor());
    device_values.download(sums.tensor());
    const double relative = dtype == DType::kF32 ? 1e-6 : dtype == DType::kF16 ? 1e-3 : 8e-3;
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t o = 0; o < 301; ++o) {
        const double sum = values.at(t, o) + bias.at(0, o);
        ASSERT_NEAR(sums.at(t, o), sum, relative * (std::abs(sum) + 1));
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
