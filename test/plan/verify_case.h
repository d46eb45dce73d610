// INSTANTIATE with a list of Broken: each test checks one exact message.
#pragma once

#include <gtest/gtest.h>

#include "test/plan/small_plan.h"

#define KTC_BROKEN_PLANS(suite, ...)                                                                   \
  class suite : public testing::TestWithParam<ktc::test::Broken> {};                                   \
  TEST_P(suite, SaysWhatIsWrong) {                                                                     \
    EXPECT_EQ(ktc::test::message_of(GetParam()), GetParam().message);                                  \
  }                                                                                                    \
  INSTANTIATE_TEST_SUITE_P(All, suite, testing::ValuesIn(std::vector<ktc::test::Broken>(__VA_ARGS__)), \
                           [](const auto& info) { return std::string(info.param.name); })
