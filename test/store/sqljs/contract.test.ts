import type { TestContext } from 'node:test'
import { compact } from '../../../dist/store/sqljs/compaction.js'
import { type Files, nodeFiles } from '../../../dist/store/sqljs/files.js'
import { SqljsStore } from '../../../dist/store/sqljs/store.js'
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

async function openStore(t: TestContext, compactBytes?: number): Promise<StoreUnderTest> {
  const directory = await temporaryDirectory()
  const gate = new Gate()
  const files: Files = {
    ...nodeFiles,
    async open(path, mode) {
      const file = await nodeFiles.open(path, mode)
      return {
        async write(bytes, at) {
          await gate.passed
          return file.write(bytes, at)
        },
        sync: () => file.sync(),
        truncate: (lengthBytes) => file.truncate(lengthBytes),
        close: () => file.close(),
      }
    },
  }
  const open = (): Promise<SqljsStore> =>
    SqljsStore.open({
      directory,
      maxDataBytes: 2 ** 28,
      files,
      // Here and not in a worker thread, which takes a tenth of a second to start.
      compact: (job) => compact(nodeFiles, job),
      // For many small lines, and for no long one.
      paddingBytes: 16 * 1024,
      log: logOf((level, message) => t.diagnostic(`${level}: ${message}`)),
      onFatal(error) {
        throw error
      },
      ...(compactBytes === undefined ? {} : { compactBytes }),
    })
  const under = await underTest(t, open, gate)
  t.after(() => checkStore(directory))
  return under
}

storeContract('sql.js', (t) => openStore(t))
storeContract('sql.js, compacting', (t) => openStore(t, 1), THOROUGH ? 6000 : 3000)
