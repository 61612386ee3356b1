import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { preload, startProcess } from '../support/process.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { headerLines, verdict } from '../support/verdict.ts'

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

/** Every plant of alice's, page by page. */
async function listed(port: number): Promise<unknown[]> {
  const plants: unknown[] = []
  for (let path: string | undefined = '/plants?limit=50'; path !== undefined; ) {
    const reply = await call(port, { path })
    assert.equal(verdict(reply), 200)
    // A list of plants.
    plants.push(...(reply.json() as unknown[]))
    const query = /^<(.*)>/.exec(headerLines(reply, 'link')[0] ?? '')?.[1]
    path = query === undefined ? undefined : `/plants${query}`
  }
  return plants
}

test(
  'memory: without memory for SQLite, creates are refused, lists go on, no plant is lost',
  { skip: LONG },
  async (t) => {
    const directory = join(await temporaryDirectory(), 'data')
    const limited = await memoryOf(64)
    const server = await startProcess(t, directory, limited)
    const plants: { readonly name: string; readonly tag: string }[] = []
    const create = async (sizes: readonly number[]) => {
      const made = sizes.map((size, i) => ({
        name: `plant ${plants.length + i}`,
        tag: 't'.repeat(size),
      }))
      const verdicts = (
        await Promise.all(
          made.map((plant, i) => post(server.port, { id: plants.length + i, ...plant })),
        )
      ).map(verdict)
      plants.push(...made.filter((_, i) => verdicts[i] === 200))
      return verdicts
    }
    let found: readonly (string | number)[] = []
    while (!found.includes('storageFull')) {
      assert.ok(plants.length < 1000)
      // One at a time once it comes close: what is refused in a group leaves no gap between the ids
      // then.
      found = await create(plants.length < 60 ? [300_000, 300_000, 300_000] : [300_000])
      for (const each of found) assert.ok(each === 200 || each === 'storageFull', String(each))
    }
    assert.ok(plants.length > 60)
    assert.deepEqual(await create([900_000]), ['storageFull'])
    assert.deepEqual(await listed(server.port), plants)
    assert.equal((await call(server.adminPort, { path: '/readyz' })).status, 200)
    // What is there already needs no memory.
    assert.equal(verdict(await post(server.port, { id: 0, ...plants[0] })), 200)
    assert.equal(verdict(await post(server.port, { id: 0, name: 'other' })), 'idTaken')
    await server.kill('SIGKILL')

    const again = await startProcess(t, directory, limited)
    assert.deepEqual(await listed(again.port), plants)
    assert.equal(
      verdict(await post(again.port, { id: 5000, name: 'Fern', tag: 't'.repeat(900_000) })),
      'storageFull',
    )
    assert.equal(await again.kill('SIGTERM'), 0)

    const roomy = await startProcess(t, directory)
    assert.equal(verdict(await post(roomy.port, { id: 5000, name: 'Fern' })), 200)
    assert.deepEqual(await listed(roomy.port), [...plants, { name: 'Fern' }])
    assert.equal(await roomy.kill('SIGTERM'), 0)
  },
)
