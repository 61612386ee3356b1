import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { MAX_PLANT_BYTES, PlantTooLarge } from '../../../dist/plants/store.js'
import { lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import type { SqljsStoreOptions } from '../../../dist/store/sqljs/sqljs-store.js'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { Gate, storeContract, underTest } from '../../contract/store.contract.ts'
import { sampled, THOROUGH } from '../../support/scale.ts'
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

test('sql.js: a plant may have 16 MiB as JSON text, and not a byte more', async (t) => {
  const { store } = await onDisk(t, { maxDataBytes: 2 ** 29 })
  const room = MAX_PLANT_BYTES - Buffer.byteLength('{"name":"","tag":"é"}')
  // The first has six bytes a character.
  for (const [id, text] of sampled(['\u0001', 'x', '🌱'], 3).entries()) {
    const bytes = Buffer.byteLength(JSON.stringify(text)) - 2
    const fits = text.repeat(Math.floor(room / bytes)) + 'x'.repeat(room % bytes)
    const create = (name: string) => store.create('alice', { id: BigInt(id), name, tag: 'é' })
    await assert.rejects(create(`${fits}x`), PlantTooLarge)
    assert.equal(await create(fits), 'stored')
  }
})

storeContract('sql.js', (t) => onDisk(t))
const compacting = (t: TestContext) => onDisk(t, { compactBytes: 1 })
storeContract('sql.js, compacting', compacting, THOROUGH ? 6000 : 3000)
