// Everything, for one run of mlir-tblgen.
include "dialects/kt/KtSymbols.td"
include "dialects/kt/KtSteps.td"
