/* SPDX-License-Identifier: Apache-2.0 */
/* Which of 1000 cached positions does a query token attend to? One that looks like it comes first. */
#include <stdint.h>
#include <stdio.h>

#include <dsakit/dsakit.h>

enum { HEADS = 4, DIM = 128, KEYS = 1000, KEEP = 8 };

static int8_t query[HEADS * DIM], key[KEYS * DIM];
static float ones[KEYS];
static int32_t indices[KEEP];

int main(void) {
  unsigned state = 1;
  for (int i = 0; i < HEADS * DIM; ++i) query[i] = (int8_t)((state = state * 1664525u + 1013904223u) >> 24);
  for (int i = 0; i < KEYS * DIM; ++i) key[i] = (int8_t)((state = state * 1664525u + 1013904223u) >> 24);
  for (int c = 0; c < DIM; ++c) key[567 * DIM + c] = query[c];
  for (int i = 0; i < KEYS; ++i) ones[i] = 1;

  int64_t query_shape[] = {1, 1, HEADS, DIM}, key_shape[] = {1, KEYS, 1, DIM}, heads[] = {1, 1, HEADS},
          keys[] = {1, KEYS, 1}, kept[] = {1, 1, 1, KEEP};
  dsakit_tensor q = dsakit_cpu_tensor(query, DSAKIT_INT, 8, 4, query_shape);
  dsakit_tensor k = dsakit_cpu_tensor(key, DSAKIT_INT, 8, 4, key_shape);
  dsakit_tensor of_heads = dsakit_cpu_tensor(ones, DSAKIT_FLOAT, 32, 3, heads);
  dsakit_tensor of_keys = dsakit_cpu_tensor(ones, DSAKIT_FLOAT, 32, 3, keys);
  dsakit_tensor out = dsakit_cpu_tensor(indices, DSAKIT_INT, 32, 4, kept);
  dsakit_argument call[] = {
      dsakit_tensor_arg("query", &q),
      dsakit_tensor_arg("key", &k),
      dsakit_tensor_arg("weights", &of_heads),
      dsakit_tensor_arg("query_dequant_scale", &of_heads),
      dsakit_tensor_arg("key_dequant_scale", &of_keys),
      dsakit_integer_arg("sparse_count", KEEP),
      dsakit_tensor_arg("sparse_indices", &out),
  };
  if (dsakit_run(NULL, "quant_lightning_indexer", call, sizeof call / sizeof *call) != DSAKIT_OK) {
    printf("%s\n", dsakit_last_error()->message);
    return 1;
  }
  for (int i = 0; i < KEEP; ++i) printf("%d ", indices[i]);
  printf("\n");

  if (dsakit_run(NULL, "quant_lightning_indexer", NULL, 0) != DSAKIT_OK) printf("%s\n", dsakit_last_error()->message);
  return indices[0] != 567;
}
