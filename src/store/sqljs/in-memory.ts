/* A store in memory alone, for tests of applications: no file, no lock, no compaction. */

import type { File, Files } from './files.ts'
import type { SqljsStoreOptions } from './store-options.ts'

const nothing = async (): Promise<void> => {}

/** Takes every write at once, and keeps none: the plants are in the database. */
const sink: File = {
  write: async ({ length }) => length,
  writeNow: ({ length }) => length,
  readNow: () => 0,
  lengthBytes: async () => 0,
  sync: nothing,
  syncNow() {},
  truncate: nothing,
  close: nothing,
}

const noFiles: Files = {
  makeDirectory: nothing,
  list: async () => [],
  read: async () => Buffer.alloc(0),
  open: async () => sink,
  rename: nothing,
  remove: nothing,
  syncDirectory: nothing,
}

/** The options of such a store besides those of any. A close loses its plants. */
export const inMemory = {
  files: noFiles,
  lock: async () => ({ release: nothing }),
  compact: async ({ plants, sequence }) => ({ bytes: 0, plants, sequence }),
  compactBytes: Infinity,
  paddingBytes: 0,
} as const satisfies Partial<SqljsStoreOptions>
