import type { TestContext } from 'node:test'
import { lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import type { SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { seeded } from '../../support/random.ts'
import { THOROUGH } from '../../support/scale.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { filesWith, openStore } from './fixtures.ts'

async function onDisk(t: TestContext, options: Partial<SqljsStoreOptions> = {}) {
  const directory = await temporaryDirectory()
  const gate = new Gate()
  const files = filesWith((file) => ({
    write: async (bytes, at) => (await gate.passed, file.write(bytes, at)),
  }))
  // Padding for many small lines, and for no long one.
  const padding = { paddingBytes: 16 * 1024, compactShare: 1 / 3 }
  const all = { lock: lockDirectory, maxDataBytes: 2 ** 28, files, ...padding, ...options }
  const under = await underTest(t, () => openStore(directory, all), gate)
  t.after(() => checkDirectory(directory))
  return under
}

const COMPACTING = { compactBytes: 1 }
// In the usual form each test is of the one or of the other.
if (THOROUGH) {
  storeContract('sql.js', (t) => onDisk(t))
  storeContract('sql.js, compacting', (t) => onDisk(t, COMPACTING))
} else {
  const either = (t: TestContext) => onDisk(t, seeded(t).random() < 0.5 ? COMPACTING : {})
  storeContract('sql.js, compacting or not', either, 3000)
}
