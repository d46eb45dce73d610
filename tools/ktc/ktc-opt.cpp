// ktc-opt: parses kt IR, runs passes, prints. Every pass of the compiler is a flag; see --help.
#include "compiler/passes/Passes.h"
#include "compiler/pipeline/Pipeline.h"
#include "dialects/kt/Kt.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

int main(int argc, char** argv) {
  mlir::DialectRegistry registry;
  registry.insert<ktc::kt::KtDialect>();
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  ktc::compiler::registerKtPasses();
  ktc::compiler::registerPipeline();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "ktc-opt: passes of the ktc compiler\n", registry));
}
