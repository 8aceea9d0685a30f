// Nearest neighbours compiled for one instruction set.
#include "knn_kernel.hpp"

namespace privml::valuation::avx512 {

void search(const Search<double>& given) { Searcher<double>(given).run(); }
void search(const Search<float>& given) { Searcher<float>(given).run(); }

}  // namespace privml::valuation::avx512
