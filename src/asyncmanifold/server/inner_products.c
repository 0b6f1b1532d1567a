/* All inner products of a few long vectors in one pass over memory: inner_products.py calls it.

   Products and sums are formed in single precision, in 8 lanes, over CHUNK numbers, and summed in double precision
   after that. The order is fixed and nothing is contracted (-ffp-contract=off), so that every processor and every
   compiler comes to the same bits. */

#include <stddef.h>

#if !defined(__GNUC__) || !defined(__linux__) || !defined(__x86_64__)
#error "written and measured for GCC and Clang on Linux with x86-64; elsewhere torch does this"
#endif

#define LANES 8
#define CHUNK 4096
#define MOST_ROWS 5
#define UNROLLED _Pragma("GCC unroll 5")

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* ROWS is a constant wherever this is inlined: loops over rows are unrolled, and sums stay in registers. */
static inline __attribute__((always_inline)) void add_products(const int ROWS, const float *const *offsets,
                                                               const float *theta, const float *base, size_t length,
                                                               double *products) {
  const int count = ROWS - (base != NULL); /* the last row is the drift, theta - base */
  for (size_t start = 0; start < length; start += CHUNK) {
    const size_t end = length - start < CHUNK ? length : start + CHUNK;
    lanes sums[MOST_ROWS][MOST_ROWS] = {0};
    lanes rows[MOST_ROWS];
    for (size_t place = start; place < end; place += LANES) {
      if (end - place >= LANES) {
        UNROLLED for (int i = 0; i < count; i++) rows[i] = *(const lanes *)(offsets[i] + place);
        if (base != NULL) rows[ROWS - 1] = *(const lanes *)(theta + place) - *(const lanes *)(base + place);
      } else { /* the last few numbers, and zeros in the other lanes */
        for (int i = 0; i < ROWS; i++) {
          rows[i] = (lanes){0};
          for (size_t lane = 0; place + lane < end; lane++)
            rows[i][lane] = i < count ? offsets[i][place + lane] : theta[place + lane] - base[place + lane];
        }
      }
      UNROLLED for (int i = 0; i < ROWS; i++)
        UNROLLED for (int j = i; j < ROWS; j++) sums[i][j] += rows[i] * rows[j];
    }
    for (int i = 0; i < ROWS; i++)
      for (int j = i; j < ROWS; j++)
        for (int lane = 0; lane < LANES; lane++) products[i * ROWS + j] += sums[i][j][lane];
  }
}

/* Adds to the upper triangle of `products` (rows x rows). Without a base there is no drift: all rows are offsets. */
__attribute__((target_clones("avx2", "default")))
void inner_products(int rows, const float *const *offsets, const float *theta, const float *base, size_t length,
                    double *products) {
  switch (rows) {
    case 1: add_products(1, offsets, theta, base, length, products); break;
    case 2: add_products(2, offsets, theta, base, length, products); break;
    case 3: add_products(3, offsets, theta, base, length, products); break;
    case 4: add_products(4, offsets, theta, base, length, products); break;
    case 5: add_products(5, offsets, theta, base, length, products); break;
  }
}
