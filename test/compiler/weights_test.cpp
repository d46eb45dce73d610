// compiler/weights: recipes, conversion, packing, and writing that resumes. The model is made by hand on real files.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "compiler/weights/journal.h"
#include "compiler/weights/pack.h"
#include "compiler/weights/recipe.h"
#include "compiler/weights/weight_writer.h"
#include "test/compiler/decode_panel.h"
#include "runtime/plan/plan.h"

namespace ktc::compiler {
namespace {

namespace fs = std::filesystem;
using models::TensorType;

std::vector<std::byte> read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> data((std::istreambuf_iterator<char>(in)), {});
  std::vector<std::byte> bytes(data.size());
  std::memcpy(bytes.data(), data.data(), data.size());
  return bytes;
}

// Two shards; element i of every tensor is a distinct bf16 number, so that a misplaced row shows.
class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("ktc_weights_" + std::to_string(::getpid()) + "_" +
                                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    model_.shards = {folder_ / "a.safetensors", folder_ / "b.safetensors"};
    data_.resize(2);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::uint32_t add_tensor(std::vector<std::uint64_t> shape, std::uint32_t shard) {
    std::uint64_t elements = 1;
    for (std::uint64_t n : shape) elements *= n;
    const std::uint64_t offset = data_[shard].size() * 2;
    for (std::uint64_t i = 0; i < elements; ++i) data_[shard].push_back(f32_to_bf16(static_cast<float>(++counter_ % 251) - 125.0f));
    model_.tensors.push_back({"t" + std::to_string(model_.tensors.size()), TensorType::bf16, std::move(shape), shard, offset, elements * 2});
    return static_cast<std::uint32_t>(model_.tensors.size() - 1);
  }
  float element(std::uint32_t tensor, std::uint64_t index) const {
    const models::Tensor& t = model_.tensors[tensor];
    return bf16_to_f32(data_[t.shard][t.offset / 2 + index]);
  }
  std::uint32_t add_slot(std::string name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns,
                         std::vector<models::TensorPiece> pieces) {
    model_.slots.push_back({std::move(name), batch, rows, columns, TensorType::bf16, std::move(pieces), {}});
    return static_cast<std::uint32_t>(model_.slots.size() - 1);
  }
  void write_shards() {
    for (std::size_t s = 0; s < 2; ++s) {
      std::ofstream out(model_.shards[s], std::ios::binary);
      out.write(reinterpret_cast<const char*>(data_[s].data()), static_cast<std::streamsize>(data_[s].size() * 2));
    }
  }
  static WeightJob job(std::string name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns, Format format,
                       std::vector<RecipePiece> pieces, std::uint64_t offset = 0) {
    return {std::move(name), batch, rows, columns, format, Packing::row_major, std::move(pieces), offset,
            *packed_bytes(format, Packing::row_major, batch, rows, columns)};
  }
  static WeightJob panel_job(std::string name, std::uint64_t batch, std::uint64_t rows, std::uint64_t columns, Format format,
                             std::uint32_t group, bool paired, std::vector<RecipePiece> pieces, std::uint64_t offset = 0) {
    const Packing packing = paired ? Packing::panel_paired : Packing::panel;
    WeightJob made{std::move(name), batch, rows, columns, format, packing, std::move(pieces), offset,
                   *packed_bytes(format, packing, batch, rows, columns, group)};
    made.group = group;
    return made;
  }
  float packed(const std::vector<std::byte>& file, const WeightJob& j, std::uint64_t b, std::uint64_t r, std::uint64_t c) const {
    const std::byte* row = file.data() + j.offset + (b * j.rows + r) * packed_row_bytes(j.format, j.packing, j.columns);
    return load_element(j.format == Format::bf16 ? TensorType::bf16 : TensorType::f32, row, c);
  }
  static WriteOptions options(int threads, std::uint64_t fingerprint) {
    WriteOptions made;
    made.threads = threads;
    made.fingerprint = fingerprint;
    return made;
  }
  std::vector<std::byte> write(const std::vector<WeightJob>& jobs, const WriteOptions& options = {}) {
    write_shards();
    std::uint64_t end = 0;
    for (const WeightJob& j : jobs) end = std::max(end, j.offset + j.bytes);
    auto records = write_weights(folder_ / "out.weights", end, jobs, model_, options);
    EXPECT_TRUE(records.ok()) << records.status().message();
    std::vector<std::byte> file = read_file(folder_ / "out.weights");
    if (records.ok()) {
      records_ = *records;
      for (std::size_t i = 0; i < jobs.size(); ++i)
        EXPECT_EQ(records_[i].digest, plan::digest64(std::span(file).subspan(jobs[i].offset, jobs[i].bytes)));
    }
    return file;
  }

  fs::path folder_;
  models::ModelDesc model_;
  std::vector<std::vector<std::uint16_t>> data_;
  std::uint64_t counter_ = 0;
  std::vector<JobRecord> records_;  // of the last write()
};

TEST_F(WeightsTest, PerExpertAndPackedStorageGiveTheSameBank) {
  constexpr std::uint64_t kExperts = 3, kIntermediate = 5, kHidden = 7;
  std::vector<models::TensorPiece> pieces;
  std::vector<std::uint32_t> gates, ups;
  for (std::uint64_t e = 0; e < kExperts; ++e) {
    gates.push_back(add_tensor({kIntermediate, kHidden}, e % 2));
    ups.push_back(add_tensor({kIntermediate, kHidden}, 1));
    pieces.push_back({gates.back(), e, 0});
    pieces.push_back({ups.back(), e, kIntermediate});
  }
  const std::uint32_t slot = add_slot("experts.gate_up", kExperts, 2 * kIntermediate, kHidden, pieces);
  const WeightJob bank = job("bank", kExperts, 2 * kIntermediate, kHidden, Format::f32, {{.slot = slot, .rows = 2 * kIntermediate}});
  const std::vector<std::byte> file = write({bank});
  for (std::uint64_t e = 0; e < kExperts; ++e)
    for (std::uint64_t r = 0; r < kIntermediate; ++r)
      for (std::uint64_t c = 0; c < kHidden; ++c) {
        EXPECT_EQ(packed(file, bank, e, r, c), element(gates[e], r * kHidden + c));
        EXPECT_EQ(packed(file, bank, e, kIntermediate + r, c), element(ups[e], r * kHidden + c));
      }
}

TEST_F(WeightsTest, PackedThreeDimensionalStorageIsReadMatrixByMatrix) {
  const std::uint32_t tensor = add_tensor({4, 6, 3}, 1);
  const std::uint32_t slot = add_slot("experts.down", 4, 6, 3, {{tensor, 0, 0}});
  const WeightJob bank = job("bank", 4, 6, 3, Format::bf16, {{.slot = slot, .rows = 6}});
  const std::vector<std::byte> file = write({bank});
  for (std::uint64_t i = 0; i < 4 * 6 * 3; ++i) EXPECT_EQ(packed(file, bank, i / 18, i / 3 % 6, i % 3), element(tensor, i));
}

TEST_F(WeightsTest, HeadsAreSplitTransposedAndDeinterleaved) {
  constexpr std::uint64_t kHeads = 2, kNope = 4, kV = 3, kLatent = 5;
  const std::uint32_t kv_b = add_tensor({kHeads * (kNope + kV), kLatent}, 0);
  const std::uint32_t slot = add_slot("kv_b", 1, kHeads * (kNope + kV), kLatent, {{kv_b, 0, 0}});
  const WeightJob uk = job("uk", kHeads, kLatent, kNope, Format::bf16,
                           {{.slot = slot, .rows = kNope, .transpose = true, .repeat = kHeads, .repeat_src_row = kNope + kV, .repeat_dst_batch = 1}});
  const WeightJob uv = job("uv", kHeads, kV, kLatent, Format::f32,
                           {{.slot = slot, .src_row = kNope, .rows = kV, .repeat = kHeads, .repeat_src_row = kNope + kV, .repeat_dst_batch = 1}}, 4096);
  // rope rows of each head: even ones first, then odd ones
  const WeightJob rope = job("rope", 1, kHeads * kNope, kLatent, Format::bf16,
                             {{.slot = slot, .src_row = 0, .row_step = 2, .rows = 2, .repeat = kHeads, .repeat_src_row = kNope + kV, .repeat_dst_row = kNope},
                              {.slot = slot, .src_row = 1, .row_step = 2, .rows = 2, .dst_row = 2, .repeat = kHeads, .repeat_src_row = kNope + kV, .repeat_dst_row = kNope}},
                             8192);
  const std::vector<std::byte> file = write({uk, uv, rope});
  for (std::uint64_t h = 0; h < kHeads; ++h)
    for (std::uint64_t l = 0; l < kLatent; ++l) {
      const std::uint64_t head = h * (kNope + kV);
      for (std::uint64_t n = 0; n < kNope; ++n) EXPECT_EQ(packed(file, uk, h, l, n), element(kv_b, (head + n) * kLatent + l));
      for (std::uint64_t v = 0; v < kV; ++v) EXPECT_EQ(packed(file, uv, h, v, l), element(kv_b, (head + kNope + v) * kLatent + l));
      const std::uint64_t order[] = {0, 2, 1, 3};
      for (std::uint64_t n = 0; n < kNope; ++n)
        EXPECT_EQ(packed(file, rope, 0, h * kNope + n, l), element(kv_b, (head + order[n]) * kLatent + l));
    }
}

TEST_F(WeightsTest, BytesDependNeitherOnThreadsNorOnAnInterruption) {
  std::vector<WeightJob> jobs;
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const std::uint64_t rows = 3 + i % 5, columns = 17 + i;
    const std::uint32_t slot = add_slot("s" + std::to_string(i), 1, rows, columns, {{add_tensor({rows, columns}, i % 2), 0, 0}});
    jobs.push_back(job("w" + std::to_string(i), 1, rows, columns, i % 3 ? Format::bf16 : Format::f32, {{.slot = slot, .rows = rows}}, offset));
    offset += jobs.back().bytes;
  }
  const std::vector<std::byte> once = write(jobs, options(1, 7));
  fs::remove(folder_ / "out.weights");
  fs::remove(journal_path(folder_ / "out.weights"));

  std::atomic<int> polls{0};
  WriteOptions stopping = options(2, 7);
  stopping.cancelled = [&] { return ++polls > 20; };
  stopping.sync_bytes = 0;
  auto interrupted = write_weights(folder_ / "out.weights", offset, jobs, model_, stopping);
  ASSERT_FALSE(interrupted.ok());
  EXPECT_EQ(interrupted.status().code(), StatusCode::cancelled);
  auto journal = Journal::open(journal_path(folder_ / "out.weights"), 7, offset);
  ASSERT_TRUE(journal.ok());
  const std::size_t kept = (*journal)->done().size();
  EXPECT_GE(kept, 18u);
  EXPECT_LT(kept, jobs.size());

  std::uint64_t first_report = 0;
  WriteOptions watched = options(2, 7);
  watched.progress = [&](std::uint64_t done, std::uint64_t) {
    if (first_report == 0) first_report = done;
  };
  const std::vector<std::byte> resumed = write(jobs, watched);
  EXPECT_EQ(resumed, once);
  EXPECT_GT(first_report, jobs[0].bytes) << "the finished jobs count as written from the start";
}

// Every element of every matrix, through the layout and not through the packer: within half a step of the checkpoint's.
TEST_F(WeightsTest, PanelsOfAnExpertBankDecodeToTheCheckpointWithinHalfAStep) {
  constexpr std::uint64_t kExperts = 3, kIntermediate = 21, kHidden = 100;
  const std::uint32_t tensor = add_tensor({kExperts, 2 * kIntermediate, kHidden}, 0);
  const std::uint32_t slot = add_slot("experts.gate_up", kExperts, 2 * kIntermediate, kHidden, {{tensor, 0, 0}});
  for (const Format format : {Format::int8, Format::int4, Format::fp8, Format::bf16}) {
    for (const std::uint32_t group : {0u, 32u, 128u}) {
      if (!has_group(format, group)) continue;
      WeightJob bank = panel_job("bank", kExperts, 2 * kIntermediate, kHidden, format, group, true,
                                 {{.slot = slot, .rows = 2 * kIntermediate}});
      bank.clip_search = false;
      const std::vector<std::byte> file = write({bank});
      const PanelLayout layout = *panel_layout(format, group, true, bank.rows, bank.columns);
      ASSERT_EQ(bank.bytes, kExperts * layout.matrix_bytes);
      double error = 0, norm = 0;
      for (std::uint64_t e = 0; e < kExperts; ++e) {
        const std::span<const std::byte> matrix = std::span(file).subspan(e * layout.matrix_bytes, layout.matrix_bytes);
        for (std::uint64_t r = 0; r < bank.rows; ++r)
          for (std::uint64_t c = 0; c < bank.columns; ++c) {
            const DecodedElement found = decode_panel(layout, matrix, r, c);
            const float expected = element(tensor, (e * bank.rows + r) * kHidden + c);
            // fp8: three bits of mantissa, steps of 2^-9 next to zero
            const float half = format == Format::fp8 ? found.scale * 0x1p-10f + std::abs(expected) * 0x1p-4f : found.scale * 0.5f;
            EXPECT_LE(std::abs(found.value - expected), half * 1.001f + std::abs(expected) * 0x1p-8f)
                << to_string(format) << "/" << group << " matrix " << e << " [" << r << ", " << c << "]";
            error += (found.value - expected) * (found.value - expected);
            norm += expected * expected;
          }
      }
      if (format == Format::bf16) {
        EXPECT_EQ(error, 0) << "bf16 keeps its bits";
      } else {
        EXPECT_NEAR(records_[0].quality.error(), std::sqrt(error / norm), 1e-6);
      }
    }
  }
}

TEST_F(WeightsTest, QualitySurvivesAnInterruptionAndBytesDoNotDependOnThreads) {
  std::vector<WeightJob> jobs;
  std::uint64_t offset = 0;
  for (std::uint64_t i = 0; i < 24; ++i) {
    const std::uint64_t rows = 40 + 2 * (i % 5), columns = 17 + 9 * i;
    const std::uint32_t slot = add_slot("s" + std::to_string(i), 1, rows, columns, {{add_tensor({rows, columns}, i % 2), 0, 0}});
    jobs.push_back(panel_job("w" + std::to_string(i), 1, rows, columns, i % 2 ? Format::int4 : Format::int8, i % 2 ? 32 : 0,
                             i % 3 == 0, {{.slot = slot, .rows = rows}}, offset));
    offset += jobs.back().bytes;
  }
  const std::vector<std::byte> once = write(jobs, {.threads = 1, .fingerprint = 7});
  const std::vector<JobRecord> expected = records_;
  fs::remove(folder_ / "out.weights");
  fs::remove(journal_path(folder_ / "out.weights"));
  std::atomic<int> polls{0};
  auto interrupted = write_weights(folder_ / "out.weights", offset, jobs, model_,
                                   {.threads = 2, .fingerprint = 7, .cancelled = [&] { return ++polls > 12; }, .sync_bytes = 0});
  ASSERT_FALSE(interrupted.ok());
  auto journal = Journal::open(journal_path(folder_ / "out.weights"), 7, offset);
  ASSERT_TRUE(journal.ok());
  EXPECT_GE((*journal)->done().size(), 10u);
  journal->reset();
  EXPECT_EQ(write(jobs, {.threads = 3, .fingerprint = 7}), once);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(records_[i].quality.squared_error, expected[i].quality.squared_error) << i;
    EXPECT_EQ(records_[i].quality.squared_norm, expected[i].quality.squared_norm) << i;
    EXPECT_EQ(records_[i].quality.worst_error, expected[i].quality.worst_error) << i;
    EXPECT_GT(records_[i].quality.error(), 0);
  }
}

TEST_F(WeightsTest, AnErrorAboveTheThresholdNamesTheWeightAndItsMatrix) {
  const std::uint32_t slot = add_slot("s", 2, 4, 64, {{add_tensor({2, 4, 64}, 0), 0, 0}});
  const WeightJob bank = panel_job("bank", 2, 4, 64, Format::int4, 0, false, {{.slot = slot, .rows = 4}});
  write({bank});
  const double worst = records_[0].quality.worst_error;
  EXPECT_GE(worst, records_[0].quality.error());
  fs::remove(journal_path(folder_ / "out.weights"));
  auto run = [&](double max_error) {
    WriteOptions options;
    options.max_error = max_error;
    return write_weights(folder_ / "out.weights", bank.bytes, {bank}, model_, options);
  };
  const auto refused = run(0.001);
  ASSERT_FALSE(refused.ok());
  const std::string message = refused.status().message();
  EXPECT_EQ(message.find("weight @bank, matrix 0: relative error of int4: found 0."), 0u) << message;
  EXPECT_NE(message.find("expected at most 0.00100; give this module a finer format or a smaller group, or raise --max-error"),
            std::string::npos)
      << message;
  EXPECT_TRUE(run(worst).ok());
  // what a journal says is held against the threshold as well
  const auto resumed = run(worst * 0.5);
  ASSERT_FALSE(resumed.ok());
  EXPECT_EQ(resumed.status().message().find("weight @bank, matrix "), 0u) << resumed.status().message();
}

TEST_F(WeightsTest, AWeightThatIsNoNumberIsNamed) {
  const std::uint32_t slot = add_slot("s", 1, 2, 8, {{add_tensor({2, 8}, 0), 0, 0}});
  data_[0][11] = 0x7fc0;
  write_shards();
  const WeightJob w = panel_job("w", 1, 2, 8, Format::int8, 0, false, {{.slot = slot, .rows = 2}});
  const auto written = write_weights(folder_ / "out.weights", w.bytes, {w}, model_, {});
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.status().message(),
            "weight @w: cannot be rounded to int8: found a value that is infinite or no number, expected finite weights; "
            "download the checkpoint again, or give this module weights: native");
}

// A slot of FP8 [130, 200] whose codes and scales lie in a shard like any other tensor; blocks are cut at its edges.
class Fp8Test : public WeightsTest {
 protected:
  static constexpr std::uint64_t kRows = 130, kColumns = 200;

  // Scales of blocks of scale_rows times scale_columns: 0.5, 2.0, 0.25, 3.0, ...
  void make(std::uint64_t scale_rows, std::uint64_t scale_columns) {
    add_tensor({3, 4}, 0);  // so that nothing begins at byte 0
    const std::uint64_t codes_at = data_[0].size() * 2;
    codes_.resize(kRows * kColumns);
    for (std::size_t i = 0; i < codes_.size(); ++i)  // 0x7f is no number
      codes_[i] = static_cast<std::uint8_t>(i * 7 % 127 | (i % 3 == 0 ? 0x80 : 0));
    scale_rows_ = scale_rows;
    scale_columns_ = scale_columns;
    across_ = (kColumns + scale_columns - 1) / scale_columns;
    scales_.resize((kRows + scale_rows - 1) / scale_rows * across_);
    for (std::size_t i = 0; i < scales_.size(); ++i) scales_[i] = std::ldexp(1.0f + static_cast<float>(i % 5) / 8, static_cast<int>(i % 4) - 2);
    std::vector<std::byte> bytes(codes_.size() + scales_.size() * 4);
    std::memcpy(bytes.data(), codes_.data(), codes_.size());
    std::memcpy(bytes.data() + codes_.size(), scales_.data(), scales_.size() * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 2) {
      std::uint16_t word;
      std::memcpy(&word, bytes.data() + i, 2);
      data_[0].push_back(word);
    }
    model_.tensors.push_back({"q", TensorType::f8_e4m3, {kRows, kColumns}, 0, codes_at, codes_.size()});
    model_.tensors.push_back({"q_scale_inv", TensorType::f32, {scales_.size() / across_, across_}, 0, codes_at + codes_.size(), scales_.size() * 4});
    models::TensorPiece piece;
    piece.tensor = 1;
    piece.scales = 2;
    piece.scale_rows = scale_rows;
    piece.scale_columns = scale_columns;
    slot_ = add_slot("q", 1, kRows, kColumns, {piece});
    model_.slots[slot_].type = TensorType::f8_e4m3;
  }
  float scale(std::uint64_t r, std::uint64_t c) const { return scales_[r / scale_rows_ * across_ + c / scale_columns_]; }
  float value(std::uint64_t r, std::uint64_t c) const {
    const int code = codes_[r * kColumns + c], exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return static_cast<float>(code & 0x80 ? -magnitude : magnitude) * scale(r, c);
  }

  std::vector<std::uint8_t> codes_;
  std::vector<float> scales_;
  std::uint64_t scale_rows_ = 0, scale_columns_ = 0, across_ = 0;
  std::uint32_t slot_ = 0;
};

TEST_F(Fp8Test, DecodesWithTheScaleOfItsBlock) {
  make(128, 128);
  const WeightJob wide = job("wide", 1, kRows, kColumns, Format::f32, {{.slot = slot_, .rows = kRows}});
  const WeightJob turned = job("turned", 1, kColumns, 3, Format::f32, {{.slot = slot_, .src_row = 127, .rows = 3, .transpose = true}},
                               wide.bytes);
  const std::vector<std::byte> file = write({wide, turned});
  for (std::uint64_t r = 0; r < kRows; ++r)
    for (std::uint64_t c = 0; c < kColumns; ++c) EXPECT_EQ(packed(file, wide, 0, r, c), value(r, c)) << r << ", " << c;
  for (std::uint64_t c = 0; c < kColumns; ++c)
    for (std::uint64_t r = 0; r < 3; ++r) EXPECT_EQ(packed(file, turned, 0, c, r), value(127 + r, c));
}

// Codes in panels are the checkpoint's bytes, with the scale of their block for every group: nothing is rounded.
TEST_F(Fp8Test, CodesAreKeptWhereTheGroupsAreThoseOfTheCheckpoint) {
  struct Case {
    std::uint64_t scale_rows, scale_columns;
    std::uint32_t group;
  };
  std::uint64_t fingerprint = 0;
  for (const Case c : {Case{128, 128, 128}, Case{1, kColumns, 128}, Case{1, kColumns, 0}, Case{kRows, kColumns, 0}}) {
    data_.assign(2, {});
    model_.tensors.clear();
    model_.slots.clear();
    make(c.scale_rows, c.scale_columns);
    // every third row, from row 1 on, and the rows between them behind those
    const WeightJob kept = panel_job("kept", 1, kRows, kColumns, Format::fp8, c.group, false,
                                     {{.slot = slot_, .src_row = 1, .row_step = 3, .rows = 43},
                                      {.slot = slot_, .row_step = 3, .rows = 44, .dst_row = 43},
                                      {.slot = slot_, .src_row = 2, .row_step = 3, .rows = 43, .dst_row = 87}});
    const std::vector<std::byte> file = write({kept}, options(2, ++fingerprint));
    const PanelLayout layout = *panel_layout(Format::fp8, c.group, false, kRows, kColumns);
    for (std::uint64_t r = 0; r < kRows; ++r) {
      const std::uint64_t row = r < 43 ? 1 + 3 * r : r < 87 ? 3 * (r - 43) : 2 + 3 * (r - 87);
      for (std::uint64_t k = 0; k < kColumns; ++k) {
        const DecodedElement found = decode_panel(layout, file, r, k);
        ASSERT_EQ(found.code, codes_[row * kColumns + k]) << r << ", " << k;
        ASSERT_EQ(found.scale, scale(row, k)) << r << ", " << k;
        ASSERT_EQ(found.value, value(row, k));
      }
    }
    EXPECT_EQ(records_[0].quality.error(), 0) << "nothing was rounded";
    EXPECT_EQ(records_[0].quality.squared_norm, 0);
  }
}

TEST_F(Fp8Test, OtherGroupsAreRoundedAgainAndSayHowMuch) {
  make(128, 128);
  const WeightJob rows = panel_job("rows", 1, kRows, kColumns, Format::fp8, 0, false, {{.slot = slot_, .rows = kRows}});
  const std::vector<std::byte> file = write({rows});
  const PanelLayout layout = *panel_layout(Format::fp8, 0, false, kRows, kColumns);
  double error = 0, norm = 0;
  for (std::uint64_t r = 0; r < kRows; ++r)
    for (std::uint64_t k = 0; k < kColumns; ++k) {
      const double difference = decode_panel(layout, file, r, k).value - value(r, k);
      error += difference * difference;
      norm += static_cast<double>(value(r, k)) * value(r, k);
    }
  EXPECT_GT(error, 0);
  EXPECT_NEAR(records_[0].quality.error(), std::sqrt(error / norm), 1e-6);
}

TEST_F(WeightsTest, AJournalOfOtherWeightsIsNotTrusted) {
  const std::uint32_t tensor = add_tensor({2, 4}, 0);
  const std::uint32_t slot = add_slot("s", 1, 2, 4, {{tensor, 0, 0}});
  const std::vector<WeightJob> jobs = {job("w", 1, 2, 4, Format::f32, {{.slot = slot, .rows = 2}})};
  write(jobs, options(0, 1));
  auto same = Journal::open(journal_path(folder_ / "out.weights"), 1, jobs[0].bytes);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ((*same)->done().size(), 1u);
  auto other = Journal::open(journal_path(folder_ / "out.weights"), 2, jobs[0].bytes);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE((*other)->done().empty());
}

TEST_F(WeightsTest, RecipesThatDoNotCoverTheWeightAreRefused) {
  const std::uint32_t slot = add_slot("s", 1, 4, 3, {{add_tensor({4, 3}, 0), 0, 0}});
  auto message = [&](std::vector<RecipePiece> pieces, std::uint64_t batch = 1, std::uint64_t rows = 4) {
    return check_job(job("w", batch, rows, 3, Format::f32, std::move(pieces)), model_).message();
  };
  EXPECT_EQ(message({{.slot = slot, .rows = 4}}), "");
  EXPECT_EQ(message({{.slot = slot, .rows = 3}}),
            "weight @w: coverage: found end at row 3 of matrix 0, expected 1 matrices of 4 rows; please report this with the model and the policy");
  EXPECT_EQ(message({{.slot = slot, .rows = 4}, {.slot = slot, .rows = 1, .dst_row = 3}}),
            "weight @w: coverage: found rows from 3 of matrix 0, expected row 0 of matrix 1 next; please report this with the model and the policy");
  EXPECT_EQ(message({{.slot = slot, .src_row = 1, .rows = 4}}),
            "weight @w: source row of slot s: found 4, expected below 4; please report this with the model and the policy");
  EXPECT_EQ(message({{.slot = slot, .rows = 4, .transpose = true}}),
            "weight @w: columns from slot s: found 4, expected 3; please report this with the model and the policy");
  EXPECT_EQ(message({{.slot = slot, .rows = 4, .dst_batch = 1}}),
            "weight @w: destination of slot s: found matrix 1 rows [0, 4), expected 1 matrices of 4 rows; please report this with the model and the policy");
  EXPECT_EQ(message({{.slot = 9, .rows = 4}}),
            "weight @w: slot index: found 9, expected below 1; please report this with the model and the policy");
}

TEST_F(WeightsTest, AShardThatShrinksIsAnErrorThatNamesIt) {
  const std::uint32_t slot = add_slot("s", 1, 4, 3, {{add_tensor({4, 3}, 0), 0, 0}});
  write_shards();
  fs::resize_file(model_.shards[0], 10);
  const WeightJob j = job("w", 1, 4, 3, Format::f32, {{.slot = slot, .rows = 4}});
  auto result = write_weights(folder_ / "out.weights", j.bytes, {j}, model_, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message(), model_.shards[0].string() +
            ": the file became shorter while it was read: found end at byte 10, expected 14 bytes more; download the file again");
}

TEST(Pack, Fp8DecodesExactly) {
  auto f8 = [](std::uint8_t code) { return load_element(TensorType::f8_e4m3, reinterpret_cast<const std::byte*>(&code), 0); };
  EXPECT_EQ(f8(0x38), 1.0f);
  EXPECT_EQ(f8(0xc2), -2.5f);
  EXPECT_EQ(f8(0x7e), 448.0f);
  EXPECT_EQ(f8(0x01), 0x1p-9f);
  EXPECT_EQ(f8(0x87), -7 * 0x1p-9f);
  EXPECT_EQ(f8(0x08), 0x1p-6f);
  EXPECT_TRUE(std::signbit(f8(0x80)) && f8(0x80) == 0.0f);
  EXPECT_TRUE(std::isnan(f8(0x7f)) && std::isnan(f8(0xff)));
}

TEST(Pack, HalfPrecisionDecodesExactly) {
  auto f16 = [](std::uint16_t bits) { return load_element(TensorType::f16, reinterpret_cast<const std::byte*>(&bits), 0); };
  EXPECT_EQ(f16(0x3c00), 1.0f);
  EXPECT_EQ(f16(0xc100), -2.5f);
  EXPECT_EQ(f16(0x7bff), 65504.0f);
  EXPECT_EQ(f16(0x0001), 0x1p-24f);
  EXPECT_EQ(f16(0x83ff), -1023 * 0x1p-24f);
  EXPECT_TRUE(std::signbit(f16(0x8000)) && f16(0x8000) == 0.0f);
  EXPECT_TRUE(std::isinf(f16(0x7c00)));
  EXPECT_TRUE(std::isnan(f16(0x7e01)));
}

}  // namespace
}  // namespace ktc::compiler
