import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkDirectory } from '../../../dist/store/sqljs/inspect.js'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import { type Compact, compact } from '../../../dist/store/sqljs/compaction.js'
import { batchLine, headLines, readHead } from '../../../dist/store/sqljs/disk/journal-format.js'
import { SNAPSHOT } from '../../../dist/store/sqljs/disk/snapshot.js'
import { plant } from '../../contract/store.contract.ts'
import { type DiskCall, NO_SPACE, type SimulatedDisk } from '../../faults/simulated-disk.ts'
import { REFUSED, simulatedFiles, UNSYNCED } from '../../faults/simulated-disk.ts'
import { seeded } from '../../support/random.ts'
import { someOf } from '../../support/scale.ts'
import { until } from '../../support/time.ts'
import { directoryOf, exportOf, filesOf, fixture, IN_MEMORY, killedAfter } from './fixtures.ts'
import { list, type LogLine, memoryDisk, openStore, plantsTo } from './fixtures.ts'
import { untilCompacted } from './fixtures.ts'

/* What happens when a store gets a new id: after an upgrade, and when an export is put back. */

type Contents = Map<string, Buffer>

const OWNERS = ['alice', 'bob', 'ünïcode owner'] as const

/** An export of a store with three writes, and the files that a kill left of it. */
async function exported(): Promise<{ readonly alone: Contents; readonly killed: Contents }> {
  const killed = await killedAfter(plantsTo(3n))
  return { alone: await exportOf(await directoryOf(killed)), killed }
}

/** Directories that get a new id at their next start. */
const BEFORE: Readonly<Record<string, () => Promise<Contents>>> = {
  'version 1': async () => filesOf(await fixture('version-1')),
  'version 1, journals alone': async () => filesOf(await fixture('version-1-padding')),
  'version 2': async () => filesOf(await fixture('version-2')),
  'version 3': async () => filesOf(await fixture('version-3')),
  'version 3 with a torn line': async () => {
    const files = await filesOf(await fixture('version-3'))
    const name = 'journal-00000002.log'
    return files.set(name, Buffer.concat([files.get(name) ?? Buffer.of(), Buffer.from('torn')]))
  },
  'an export alone': async () => (await exported()).alone,
  'an export over its own store': async () => {
    const { alone, killed } = await exported()
    return new Map([...killed, ...alone])
  },
}

/** Many moments leave the same disk. */
function differing(disks: readonly SimulatedDisk[]): readonly SimulatedDisk[] {
  return [...new Map(disks.map((disk) => [disk.digest(), disk])).values()]
}

/** Everything that a store lists. */
async function listed(store: Parameters<typeof list>[0]) {
  return Promise.all(OWNERS.map((owner) => list(store, owner)))
}

const opened = (disk: SimulatedDisk, files = simulatedFiles(disk), lines: LogLine[] = []) =>
  openStore(IN_MEMORY, { files, retryMs: 1 }, lines)

/** Starts on a disk, compares, creates, and starts again after a kill and after a stop. */
async function startsWith(disk: SimulatedDisk, plants: unknown, isExported: boolean) {
  const files = simulatedFiles(disk)
  assert.match(await checkDirectory(IN_MEMORY, files), /is sound/)
  if (isExported) {
    const alone = await opened(memoryDisk(await exportOf(IN_MEMORY, files)))
    assert.deepEqual(await listed(alone), plants)
    await alone.close()
  }
  const store = await opened(disk)
  assert.deepEqual(await listed(store), plants)
  assert.equal(await store.create('carol', plant(1n)), 'stored')
  const killed = disk.afterPowerLoss([])
  await store.close()
  for (const left of [killed, disk]) {
    assert.match(await checkDirectory(IN_MEMORY, simulatedFiles(left)), /is sound/)
    const again = await opened(left)
    assert.deepEqual([await listed(again), (await list(again, 'carol')).length], [plants, 1])
    await again.close()
  }
}

for (const [what, filesBefore] of Object.entries(BEFORE)) {
  test(`identity: ${what}: a kill at any call of the new id loses nothing`, async (t) => {
    const { random } = seeded(t)
    // A torn line is damage to a check, until a start has put it aside.
    const isTorn = what.includes('torn')
    const put = memoryDisk(await filesBefore())
    // Durable: a loss of power takes away only what the start does.
    const disk = put.afterPowerLoss(put.pending().map(() => 'kept' as const))
    const moments: SimulatedDisk[] = []
    const onCall = (): undefined => void moments.push(disk.copy())
    const lines: LogLine[] = []
    const store = await opened(disk, simulatedFiles(disk, { onCall }), lines)
    const plants = await listed(store)
    await untilCompacted(lines)
    assert.equal(store.unavailableReason(), undefined)
    await store.close()
    moments.push(disk.copy())
    const journals = moments.map((moment) => {
      return moment.names(IN_MEMORY).filter((name) => name.endsWith('.log')).join()
    })
    assert.ok(new Set(journals).size >= 2, 'the new journal comes before the removals')
    const states = moments.flatMap((moment) => {
      const all = moment.pending().map(() => 'kept' as const)
      return [moment.copy(), moment.afterPowerLoss([]), moment.afterPowerLoss(all)]
    })
    const tried = someOf(random, differing(states), 16)
    for (const left of tried) {
      if (isTorn) await (await opened(left)).close()
      await startsWith(left, plants, !isTorn && random() < 0.1)
    }
    t.diagnostic(`${tried.length} states after ${moments.length} calls`)
  })
}

test('identity: until the first snapshot lists are served, and creates wait for it', async (t) => {
  for (const [what, filesBefore] of someOf(seeded(t).random, Object.entries(BEFORE), 3)) {
    const disk = memoryDisk(await filesBefore())
    const files = simulatedFiles(disk)
    const lines: LogLine[] = []
    const attempts: ((isAllowed: boolean) => void)[] = []
    const allowing: Compact = async (job) => {
      const isAllowed = await new Promise<boolean>((resolve) => attempts.push(resolve))
      assert.ok(isAllowed, 'not allowed')
      return compact(files, job)
    }
    const store = await openStore(IN_MEMORY, { files, retryMs: 1, compact: allowing }, lines)
    const refused = assert.rejects(store.create('carol', plant(1n)), /cannot be made: not allowed/)
    await until('an attempt', () => attempts.length === 1)
    assert.ok((await listed(store)).some((plants) => plants.length > 0), what)
    assert.equal(store.unavailableReason(), undefined)
    attempts[0]?.(false)
    await refused
    assert.match(store.unavailableReason() ?? '', /first snapshot .* cannot be made: not allowed/)
    await assert.rejects(store.create('carol', plant(1n)), StoreUnavailable)
    await until('another one', () => attempts.length === 2)
    attempts[1]?.(true)
    await untilCompacted(lines)
    assert.equal(store.unavailableReason(), undefined)
    assert.equal(await store.create('carol', plant(1n)), 'stored')
    const killed = disk.afterPowerLoss([])
    await store.close()
    const again = await opened(killed)
    assert.equal((await list(again, 'carol')).length, 1)
    await again.close()
  }
})

test('identity: a stop during the first snapshot answers creates, and saves memory', async () => {
  const disk = memoryDisk((await BEFORE['version 3']?.()) ?? assert.fail())
  const files = simulatedFiles(disk)
  const hanging: Compact = (_, signal) =>
    new Promise((_, reject) => signal?.addEventListener('abort', () => reject(new Error('ended'))))
  const store = await openStore(IN_MEMORY, { files, compact: hanging })
  const plants = await listed(store)
  const refused = assert.rejects(store.create('carol', plant(1n)), /the store is closed/)
  await store.close()
  await refused
  assert.match(await checkDirectory(IN_MEMORY, files), /is sound/)
  const again = await openStore(IN_MEMORY, { files, compact: () => assert.fail('not due') })
  assert.deepEqual([await listed(again), await list(again, 'carol')], [plants, []])
  await again.close()
})

test('identity: a journal that was not removed leads to a complete snapshot too', async (t) => {
  const versions = ['version 1', 'version 2', 'version 3']
  for (const what of someOf(seeded(t).random, versions, 3)) {
    const disk = memoryDisk((await BEFORE[what]?.()) ?? assert.fail())
    let isInDoubt = false
    const onCall = ({ name, mode, path }: DiskCall) => {
      const isJournal = path.endsWith('.log')
      if (name === 'remove' && isJournal) return REFUSED
      return isInDoubt && isJournal && (mode || name === 'rename') ? REFUSED : undefined
    }
    const store = await opened(disk, simulatedFiles(disk, { onCall }))
    assert.equal(await store.create('alice', plant(99n)), 'stored')
    const plants = await listed(store)
    isInDoubt = true
    await assert.rejects(store.create('alice', plant(100n)), StoreUnavailable)
    // Its complete snapshot needs no journal. Those of both ids are still beside it.
    await store.close()
    const left = disk.names(IN_MEMORY).filter((name) => name.endsWith('.log'))
    assert.equal(left.length, 2, what)
    await startsWith(disk.afterPowerLoss([]), plants, true)
  }
})

test('identity: a stop before the new journal may be killed at any call', async (t) => {
  const { random } = seeded(t)
  for (const what of someOf(random, Object.keys(BEFORE), 7)) {
    const disk = memoryDisk((await BEFORE[what]?.()) ?? assert.fail())
    const moments: SimulatedDisk[] = []
    let isStopping = false
    const onCall = ({ mode, path }: { readonly mode?: unknown; readonly path: string }) => {
      if (isStopping) moments.push(disk.copy())
      return mode === 'temporary' && /\.log\.\w+\.tmp$/.test(path) ? NO_SPACE : undefined
    }
    const store = await opened(disk, simulatedFiles(disk, { onCall }))
    const plants = await listed(store)
    isStopping = true
    await store.close()
    moments.push(disk.copy())
    const states = moments.flatMap((moment) => [moment.copy(), moment.afterPowerLoss([])])
    for (const left of someOf(random, differing(states), 3)) {
      // A torn line is damage to a check, until a start has put it aside.
      if (what.includes('torn')) await (await opened(left)).close()
      await startsWith(left, plants, false)
    }
  }
})

test('identity: on a full disk each lists, and takes creates when it can', async (t) => {
  // Nothing can be made; a journal can, and no snapshot.
  const paths = [/\.tmp$/, /plants\.sqlite\.\w+\.tmp$/]
  const cases = paths.flatMap((path) => Object.keys(BEFORE).map((what) => [what, path] as const))
  for (const [what, path] of someOf(seeded(t).random, cases, 14)) {
    const before = (await BEFORE[what]?.()) ?? assert.fail()
    const first = await opened(memoryDisk(before))
    const plants = await listed(first)
    await first.close()
    const disk = memoryDisk(before)
    let isFull = true
    const onCall = (call: { readonly name: string; readonly path: string }) =>
      isFull && /^write/.test(call.name) && path.test(call.path) ? NO_SPACE : undefined
    const store = await opened(disk, simulatedFiles(disk, { onCall }))
    assert.deepEqual(await listed(store), plants, what)
    await assert.rejects(store.create('carol', plant(1n)), StoreUnavailable)
    assert.match(store.unavailableReason() ?? '', /ENOSPC/)
    // What is there stays as it was, and a kill or a loss of power now loses nothing.
    const now = await filesOf(IN_MEMORY, simulatedFiles(disk.copy()))
    for (const [name, bytes] of before) assert.deepEqual(now.get(name), bytes)
    if (!what.includes('torn'))
      for (const left of [disk.copy(), disk.afterPowerLoss([])])
        await startsWith(left, plants, true)
    isFull = false
    await until('creates work', () => store.unavailableReason() === undefined)
    assert.equal(await store.create('carol', plant(1n)), 'stored')
    await store.close()
    const again = await opened(disk)
    assert.deepEqual([await listed(again), (await list(again, 'carol')).length], [plants, 1])
    await again.close()
  }
})

test('identity: once its journal can be made, readiness waits for the first snapshot', async () => {
  const disk = memoryDisk((await BEFORE['version 3']?.()) ?? assert.fail())
  let [isFull, isTried] = [true, false]
  const onCall = ({ name, path }: { readonly name: string; readonly path: string }) =>
    isFull && name === 'write' && path.endsWith('.tmp') ? NO_SPACE : undefined
  const files = simulatedFiles(disk, { onCall })
  const hanging: Compact = (_, signal) =>
    new Promise((_, reject) => {
      isTried = true
      signal?.addEventListener('abort', reject)
    })
  const store = await openStore(IN_MEMORY, { files, retryMs: 1, compact: hanging })
  assert.match(store.unavailableReason() ?? '', /ENOSPC/)
  isFull = false
  await until('it is tried', () => isTried)
  assert.match(store.unavailableReason() ?? '', /first snapshot under a new id/)
  await assert.rejects(store.create('carol', plant(1n)), /first snapshot under a new id/)
  await store.close()
})

test('identity: beside a line that was lost, a file is named, and may be moved', async () => {
  const disk = memoryDisk(new Map())
  let isFailing = false
  const onCall = ({ name, path }: { readonly name: string; readonly path: string }) =>
    isFailing && name === 'write' && path.endsWith('.log') ? UNSYNCED : undefined
  const store = await opened(disk, simulatedFiles(disk, { onCall }))
  assert.equal(await store.create('alice', plant(1n)), 'stored')
  const exported = await exportOf(IN_MEMORY, simulatedFiles(disk))
  isFailing = true
  await assert.rejects(store.create('alice', plant(2n)), StoreUnavailable)
  // Killed: readers see a line that no later sync makes durable.
  const killed = disk.copy()
  isFailing = false
  await store.close()
  const snapshot = killed.createOrEmpty(`${IN_MEMORY}/${SNAPSHOT}`)
  killed.write(snapshot, exported.get(SNAPSHOT) ?? assert.fail(), 0)
  killed.sync(snapshot)
  const moments: SimulatedDisk[] = []
  const record = (): undefined => void moments.push(killed.copy())
  const started = await opened(killed, simulatedFiles(killed, { onCall: record }))
  assert.equal((await list(started)).length, 2)
  await started.close()
  let refused = 0
  for (const lost of differing(moments.map((moment) => moment.afterPowerLoss([])))) {
    const left = await opened(lost).catch((error: unknown) => {
      refused++
      const [, file = ''] = /(\S+) is damaged .* move this file/.exec(String(error)) ?? []
      lost.remove(file)
      return opened(lost)
    })
    assert.ok((await list(left)).length >= 1)
    await left.close()
  }
  assert.ok(refused > 0)
})

test('identity: files of the id before that stay are read, and must fit', async () => {
  const { alone, killed } = await exported()
  const disk = memoryDisk(new Map([...killed, ...alone]))
  let isStuck = true
  const onCall = ({ name }: { readonly name: string }) =>
    isStuck && name === 'remove' ? NO_SPACE : undefined
  const files = simulatedFiles(disk, { onCall })
  const journals = () => disk.names(IN_MEMORY).filter((name) => name.endsWith('.log'))
  for (const id of [11n, 12n, 13n]) {
    const store = await opened(disk, files)
    assert.equal(await store.create('alice', plant(id)), 'stored')
    await store.close()
    assert.match(await checkDirectory(IN_MEMORY, files), /is sound/)
  }
  const [first = ''] = journals()
  const before = await filesOf(IN_MEMORY, simulatedFiles(disk))
  assert.ok(journals().length > 3 && killed.has(first))
  // The same writes with other plants.
  const { begin } = readHead('', before.get(first) ?? assert.fail())
  const lines = [1, 2, 3].map((id) => batchLine(id, [['alice', String(id), 'Oak']]))
  const fork = new Map(before).set(first, Buffer.concat([headLines(begin), ...lines]))
  const ends = /00001\.log .* it ends with write 3, and .*2\.log begins/
  await assert.rejects(opened(memoryDisk(fork)), ends)
  isStuck = false
  const last = await opened(disk, files)
  assert.equal((await list(last)).length, 6)
  await last.close()
  assert.equal(journals().length, 1)
})

/** The rules by which 3.0.0 reads a journal's first line and a snapshot's end. */
const FIRST_LINE_OF_3_0_0 = /^(plant-store-journal (\d+) (\d+)) ([0-9a-f]{8})$/

test('identity: 3.0.0 finds another version in both files, and no damage', async () => {
  const files = await killedAfter(plantsTo(2n), { compactBytes: 1 })
  const last = [...files].findLast(([name]) => name.endsWith('.log')) ?? assert.fail()
  const [line = ''] = last[1].toString('latin1').split('\n')
  const [, , version] = FIRST_LINE_OF_3_0_0.exec(line) ?? assert.fail()
  assert.equal(version, '2')
  const trailer = files.get(SNAPSHOT)?.subarray(-64) ?? assert.fail()
  assert.equal(trailer.toString('latin1', 0, 16), 'plant-store snap')
  assert.equal(trailer.readUInt32BE(16), 4)
  // Every head fits into what any release reads of it.
  const longest = headLines({ id: 2 ** 48 - 1, sequence: 2 ** 53 - 1, checksum: 2 ** 32 - 1 })
  assert.ok(longest.length <= 128)
  assert.equal(readHead('', longest).begin.id, 2 ** 48 - 1)
})
