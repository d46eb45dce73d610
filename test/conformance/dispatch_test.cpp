// Which kernels a machine gets. Features are plain data, so every machine can be asked about.
#include <gmock/gmock.h>

#include "test/conformance/rows.h"

namespace ktc::kernels {

namespace {

using ::testing::ElementsAre;

CpuFeatures features_of(IsaLevel level) {
  CpuFeatures f;
  if (level == IsaLevel::scalar) return f;
  f.avx2 = f.fma = f.f16c = true;
  if (level == IsaLevel::avx2) return f;
  f.avx512f = f.avx512bw = f.avx512vl = f.avx512dq = true;
  if (level == IsaLevel::avx512) return f;
  f.avx512_vnni = true;
  if (level == IsaLevel::avx512_vnni) return f;
  f.avx512_bf16 = f.amx_tile = f.amx_int8 = f.amx_bf16 = true;
  return f;
}

template <typename Fn>
Fn row_function(std::string_view name) {
  for (const Row<Fn>& row : rows<Fn>())
    if (row.name == name) return row.function;
  return nullptr;
}

TEST(Dispatch, TheScalarLevelIsComplete) {
  const KernelSet set = select_kernels(CpuFeatures{});
  EXPECT_EQ(set.level, IsaLevel::scalar);
#define KTC_KERNEL(slot, level, format, packing, function) EXPECT_NE(set.slot, nullptr) << #slot;
#include "runtime/kernels/cpu/kernels.def"
#define KTC_PANEL_KERNEL(slot, level, format, function) \
  if (std::string_view(#slot).find("many") == std::string_view::npos) EXPECT_NE(set.slot, nullptr) << #slot;
#include "runtime/kernels/cpu/panel_kernels.def"
  EXPECT_EQ(set.panel_int8.many, nullptr);
}

TEST(Dispatch, EveryRowIsReached){
#define KTC_KERNEL(slot, level_, format, packing, function)                        \
  {                                                                                \
    const KernelSet set = select_kernels(features_of(IsaLevel::level_));           \
    EXPECT_EQ(set.level, IsaLevel::level_);                                        \
    EXPECT_EQ(set.slot, &function) << #function " is not chosen by its own level"; \
  }
#include "runtime/kernels/cpu/kernels.def"
#define KTC_PANEL_KERNEL(slot, level_, format, function)                           \
  {                                                                                \
    const KernelSet set = select_kernels(features_of(IsaLevel::level_));           \
    EXPECT_EQ(set.level, IsaLevel::level_);                                        \
    EXPECT_EQ(set.slot, &function) << #function " is not chosen by its own level"; \
  }
#include "runtime/kernels/cpu/panel_kernels.def"
}

TEST(Dispatch, MaskedFeaturesSelectLowerLevels) {
  CpuFeatures f = features_of(IsaLevel::avx512);
  EXPECT_EQ(select_kernels(f).level, IsaLevel::avx512);
  f.avx512dq = false;
  EXPECT_EQ(select_kernels(f).level, IsaLevel::avx2);
  EXPECT_EQ(select_kernels(f).matmul_bf16, row_function<MatmulFn>("matmul_bf16_avx2"));
  f.fma = false;
  EXPECT_EQ(select_kernels(f).level, IsaLevel::scalar);
  EXPECT_EQ(select_kernels(f).matmul_bf16, row_function<MatmulFn>("matmul_bf16_scalar"));
}

#if defined(__x86_64__)
TEST(Dispatch, MaskedFeaturesSelectLowerPanels) {
  CpuFeatures f = features_of(IsaLevel::amx);
  KernelSet set = select_kernels(f);
  EXPECT_EQ(set.panel_int8.few, panel_int8_few_vnni);
  EXPECT_EQ(set.panel_int8.many, panel_int8_many_amx);
  EXPECT_EQ(set.panel_bf16.few, panel_bf16_few_avx512);
  f.amx_bf16 = false;  // the level goes as a whole
  set = select_kernels(f);
  EXPECT_EQ(set.panel_int8.few, panel_int8_few_vnni);
  EXPECT_EQ(set.panel_int8.many, nullptr);
  EXPECT_EQ(set.enter_tiles, enter_tiles_none);
  f.avx512_vnni = false;
  set = select_kernels(f);
  EXPECT_EQ(set.panel_int4.few, panel_int4_few_avx512);
  f.avx512bw = false;
  set = select_kernels(f);
  EXPECT_EQ(set.panel_int4.few, panel_int4_few_avx2);
  EXPECT_EQ(set.quantise_row, quantise_row_avx2);
  f.avx2 = false;
  EXPECT_EQ(select_kernels(f).panel_fp8.few, panel_fp8_few_scalar);
}
#endif

TEST(Dispatch, ALevelCanBeAskedFor) {
  const CpuFeatures f = features_of(IsaLevel::avx512);
  for (IsaLevel level : {IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512})
    EXPECT_EQ(select_kernels(f, level).level, level);
  EXPECT_EQ(select_kernels(f, IsaLevel::best).level, IsaLevel::avx512);
  EXPECT_EQ(select_kernels(CpuFeatures{}, IsaLevel::avx512).level, IsaLevel::scalar) << "never above the machine";
}

TEST(Dispatch, AvailableLevels) {
  EXPECT_THAT(available_levels(CpuFeatures{}), ElementsAre(IsaLevel::scalar));
  EXPECT_THAT(available_levels(features_of(IsaLevel::avx2)), ElementsAre(IsaLevel::scalar, IsaLevel::avx2));
  EXPECT_THAT(available_levels(features_of(IsaLevel::avx512)),
              ElementsAre(IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512));
  EXPECT_THAT(available_levels(features_of(IsaLevel::amx)),
              ElementsAre(IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::avx512_vnni, IsaLevel::amx));
  CpuFeatures no_vnni = features_of(IsaLevel::amx);
  no_vnni.avx512_vnni = false;
  EXPECT_THAT(available_levels(no_vnni), ElementsAre(IsaLevel::scalar, IsaLevel::avx2, IsaLevel::avx512));
  CpuFeatures no_f16c = features_of(IsaLevel::avx512);
  no_f16c.f16c = false;  // avx2 rows want it, avx512 rows do not
  EXPECT_THAT(available_levels(no_f16c), ElementsAre(IsaLevel::scalar, IsaLevel::avx512));
}

TEST(Dispatch, FormatsPickTheirSlot) {
  const KernelSet set = select_kernels(CpuFeatures{});
  EXPECT_EQ(set.matmul(Format::bf16), set.matmul_bf16);
  EXPECT_EQ(set.matmul(Format::f32), set.matmul_f32);
  EXPECT_EQ(set.gate_up(Format::bf16), set.gate_up_bf16);
  EXPECT_EQ(set.store(Format::bf16), set.store_bf16);
  EXPECT_EQ(set.load(Format::f32), set.load_f32);
  EXPECT_EQ(set.attend(Format::bf16), set.attend_bf16);
  EXPECT_EQ(set.panel(Format::int8).few, set.panel_int8.few);
  EXPECT_EQ(set.panel(Format::int4).few, set.panel_int4.few);
  EXPECT_EQ(set.panel(Format::fp8).few, set.panel_fp8.few);
  EXPECT_EQ(set.panel(Format::bf16).few, set.panel_bf16.few);
}

}  // namespace
}  // namespace ktc::kernels
