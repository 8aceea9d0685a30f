// The linear models compiled for one instruction set.
#include <utility>

#include "logistic.hpp"
#include "logistic_span.hpp"
#include "ridge.hpp"

namespace privml::valuation::avx2 {

void ridge_walk(const Table& table, const Walk& walk, const Ridge& ridge, double* work) {
  RidgeWalk(table, walk, ridge, work).run();
}

int32_t logistic_walk(const Table& table, const Walk& walk, const Logistic& logistic,
                      double* work) {
  if (spanned(table, walk.steps)) return SpanWalk(table, walk, logistic, work).run();
  return LogisticWalk(table, walk, logistic, work).run();
}

}  // namespace privml::valuation::avx2
