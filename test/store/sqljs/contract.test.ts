import type { TestContext } from 'node:test'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { type Files, nodeFiles } from '../../../dist/store/sqljs/files.js'
import { inMemory } from '../../../dist/store/sqljs/in-memory.js'
import { SqljsStore, type SqljsStoreOptions } from '../../../dist/store/sqljs/store.js'
import { checkStore } from '../../../dist/cli/check.js'
import {
  Gate,
  storeContract,
  type StoreUnderTest,
  underTest,
} from '../../contract/store.contract.ts'
import { THOROUGH } from '../../support/scale.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { logOf } from '../../support/log.ts'

/** Writes pass the gate. */
function gated(files: Files, gate: Gate): Files {
  return {
    ...files,
    async open(path, mode) {
      const file = await files.open(path, mode)
      return {
        ...file,
        async write(bytes, at) {
          await gate.passed
          return file.write(bytes, at)
        },
      }
    },
  }
}

/** What a store of these tests needs besides its files. */
function common(t: TestContext): Omit<SqljsStoreOptions, 'directory'> {
  return {
    maxDataBytes: 2 ** 28,
    log: logOf((level, message) => t.diagnostic(`${level}: ${message}`)),
    onFatal(error) {
      throw error
    },
  }
}

async function openStore(t: TestContext, compactBytes?: number): Promise<StoreUnderTest> {
  const directory = await temporaryDirectory()
  const gate = new Gate()
  const open = (): Promise<SqljsStore> =>
    SqljsStore.open({
      ...common(t),
      directory,
      files: gated(nodeFiles, gate),
      // Here and not in a worker thread, which takes a tenth of a second to start.
      compact: (job) => compact(nodeFiles, job),
      // For many small lines, and for no long one.
      paddingBytes: 16 * 1024,
      ...(compactBytes === undefined ? {} : { compactBytes }),
    })
  const under = await underTest(t, open, gate)
  t.after(() => checkStore(directory))
  return under
}

async function openInMemory(t: TestContext): Promise<StoreUnderTest> {
  const gate = new Gate()
  const files = gated(inMemory.files, gate)
  const options = { ...common(t), ...inMemory, directory: ':memory:', files }
  const open = (): Promise<SqljsStore> => SqljsStore.open(options)
  const { store, hold } = await underTest(t, open, gate)
  return { store, hold }
}

storeContract('sql.js', (t) => openStore(t))
storeContract('sql.js, compacting', (t) => openStore(t, 1), THOROUGH ? 6000 : 3000)
storeContract('sql.js, in memory', openInMemory, THOROUGH ? 6000 : 3000)
