// ktc-opt: parses kt IR, runs passes, prints. Every pass of the compiler is a flag; see --help.
#include "dialects/kt/Kt.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

int main(int argc, char** argv) {
  mlir::DialectRegistry registry;
  registry.insert<ktc::kt::KtDialect>();
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "ktc-opt: passes of the ktc compiler\n", registry));
}
