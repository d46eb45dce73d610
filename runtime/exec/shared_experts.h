// Experts that a GPU streams and of which the CPU takes a share (ExpertsOp.share): what a step decides about one layer, once the
// layer's router has chosen.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/exec/program.h"
#include "runtime/formats/expert_share.h"
#include "runtime/plan/plan.h"

namespace ktc::exec {

// Which matrix has which expert for the CPU's ops of that kind, in the step that runs: [model.experts], -1: not the CPU's. Steps of the
// CPU point into it. By the op of the CPU, which is part of the plan.
using SharedSlots = std::map<const planfb::ExpertsOpT*, std::vector<std::int32_t>>;
SharedSlots shared_slots(const planfb::PlanT& plan);  // nothing is the CPU's

// The step of the CPU that shares what `streams` streams; the plan was verified.
const planfb::StepT& sharing_step(const planfb::EntryT& entry, const planfb::StepT& streams);

ExpertShare share_of(const planfb::ExpertShareT& share);

// Bytes of SharedExpertsStep::to_gpu of all such steps of a plan.
std::uint64_t shared_table_bytes(const planfb::PlanT& plan);

struct SharedExpertsStep {
  ExpertShare rates;
  Ids ids;                                // of the router, on the host
  bool of_rows = false;
  const std::int32_t* slots = nullptr;    // [experts] matrices of the bank, all of them; null: the id itself
  std::uint32_t experts = 0;              // of the model
  std::int32_t* cpu_slots = nullptr;      // [experts] written by decide()
  std::int32_t* to_gpu = nullptr;         // the same for the GPU: pinned, and where it goes
  std::int32_t* gpu_slots = nullptr;
  std::vector<std::uint32_t> chosen;      // by matrix: rows that chose it
  std::vector<std::uint8_t> on_cpu;       // by matrix
  SharedExperts result;                   // of the last decide()
  std::uint64_t pairs = 0;                // of all matrices

  // Whether a step of so many rows has anything to decide: not all of the bank is copied before the choice is known.
  bool decides(std::uint32_t rows) const { return matrices_ahead(rates, static_cast<std::uint32_t>(chosen.size()), rows) < chosen.size(); }
  // From the ids of `rows` rows.
  void decide(std::uint32_t rows);
  // All of it stays with the GPU.
  void decide_nothing();

 private:
  void write_slots();
};

}  // namespace ktc::exec
