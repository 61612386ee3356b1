import type { TestContext } from 'node:test'
import { lockDirectory } from '../../../dist/store/sqljs/lock.js'
import type { SqljsStore, SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { checkStore } from '../../../dist/cli/check.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { THOROUGH } from '../../support/scale.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { filesWith, openStore } from './fixtures.ts'

/** Writes pass the gate. */
function open(t: TestContext, directory: string, options: Partial<SqljsStoreOptions>) {
  const gate = new Gate()
  const files = filesWith(
    (file) => ({ write: async (bytes, at) => (await gate.passed, file.write(bytes, at)) }),
    options.files,
  )
  const opened = (): Promise<SqljsStore> =>
    openStore(directory, { ...options, maxDataBytes: 2 ** 28, files })
  return underTest(t, opened, gate)
}

async function onDisk(t: TestContext, options: Partial<SqljsStoreOptions> = {}) {
  const directory = await temporaryDirectory()
  // Padding for many small lines, and for no long one.
  const common = { lock: lockDirectory, paddingBytes: 16 * 1024, compactShare: 1 / 3 }
  const under = await open(t, directory, { ...common, ...options })
  t.after(() => checkStore(directory))
  return under
}

const FEWER = THOROUGH ? 6000 : 3000
storeContract('sql.js', (t) => onDisk(t))
storeContract('sql.js, compacting', (t) => onDisk(t, { compactBytes: 1 }), FEWER)
