import type { TestContext } from 'node:test'
import { lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import type { SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
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

storeContract('sql.js', (t) => onDisk(t))
const compacting = (t: TestContext) => onDisk(t, { compactBytes: 1 })
storeContract('sql.js, compacting', compacting, THOROUGH ? 6000 : 3000)
