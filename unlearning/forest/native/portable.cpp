// Stands in for the vector kernels on processors other than x86-64.
#include "kernels.hpp"

namespace privml::forest {

const Kernels& kernels_avx2() { return kernels_scalar(); }
const Kernels& kernels_avx512() { return kernels_scalar(); }

}  // namespace privml::forest
