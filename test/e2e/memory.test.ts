import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { preload, startProcess } from '../support/process.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { verdict } from '../support/verdict.ts'

const MIB = 1024 * 1024

/**
 * Has a process and its threads find no more than this much memory for SQLite: every
 * WebAssembly.Memory stops growing there.
 */
function memoryOf(mib: number): Promise<Record<string, string>> {
  return preload(`
    const { grow } = WebAssembly.Memory.prototype
    WebAssembly.Memory.prototype.grow = function (pages) {
      if (this.buffer.byteLength + pages * 65536 > ${mib * MIB})
        throw new RangeError('no more memory')
      return grow.call(this, pages)
    }`)
}

test(
  'memory: without memory for SQLite the process ends, and no acknowledged plant is lost',
  { skip: LONG },
  async (t) => {
    const directory = join(await temporaryDirectory(), 'data')
    // PLANTS_MAX_DATA_BYTES is a quarter of what SQLite can have: only a test meets this bound.
    const server = await startProcess(t, directory, await memoryOf(64))
    const plants: { readonly name: string; readonly tag: string }[] = []
    for (;;) {
      assert.ok(plants.length < 1000)
      const plant = { name: `plant ${plants.length}`, tag: 't'.repeat(300_000) }
      const reply = await post(server.port, { id: plants.length, ...plant }).catch(() => undefined)
      if (!reply) break
      assert.equal(verdict(reply), 200)
      plants.push(plant)
    }
    assert.ok(plants.length > 60)
    assert.equal(await server.exited, 1)
    assert.match(server.output(), /^plant-store: memory and disk may differ; /m)

    const roomy = await startProcess(t, directory)
    // The plant whose insert failed was in the journal.
    const found = (await call(roomy.port)).json() as unknown[]
    assert.deepEqual(found.slice(0, plants.length), plants)
    assert.ok(found.length <= plants.length + 1)
    assert.equal(verdict(await post(roomy.port, { id: 5000, name: 'Fern' })), 200)
    assert.equal(await roomy.kill('SIGTERM'), 0)
  },
)
