import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { checkDirectory, exportToFile } from '../../../dist/store/sqljs/inspect.js'
import { type Files, nodeFiles } from '../../../dist/store/sqljs/disk/files.js'
import { lockDirectory } from '../../../dist/store/sqljs/disk/lock.js'
import { plant } from '../../contract/store.contract.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { filesReading, list, type LogLine, openStore } from './fixtures.ts'

test('readers: however long they take, compactions meanwhile hide nothing', async () => {
  const data = `${await temporaryDirectory()}/data`
  const lines: LogLine[] = []
  const store = await openStore(data, { lock: lockDirectory, compactBytes: 1000 }, lines)
  let id = 0n
  const createSome = async (): Promise<void> => {
    for (const last = id + 10n; id < last; )
      await store.create('alice', plant(++id, 'x'.repeat(200)))
  }
  let [hasRead, startedOver] = [false, false]
  // Reading takes longer than compactions do.
  const slow = filesReading(async () => {
    if (hasRead) return
    hasRead = true
    const before = lines.length
    // Compactions, too, need the processor.
    for (; lines.length < before + 2; await sleep(25)) await createSome()
  })
  const open: Files['open'] = (path, mode) => {
    startedOver ||= hasRead
    return slow.open(path, mode)
  }
  const files: Files = { ...slow, open }
  await createSome()
  for (const read of [
    () => exportToFile(data, `${data}-export`, files),
    () => checkDirectory(data, files),
  ]) {
    hasRead = false
    await read()
    assert.ok(hasRead && !startedOver)
  }
  await store.close()
})

test('readers: names that change while files are opened are listed again', async () => {
  const data = `${await temporaryDirectory()}/data`
  let store = await openStore(data, { lock: lockDirectory })
  await store.create('alice', plant(1n))
  let restarts = 0
  const open: Files['open'] = async (path, mode) => {
    // The journal that was listed is gone, or the snapshot has more than the journals go on from.
    if (restarts++ < 2) {
      await store.close()
      store = await openStore(data, { lock: lockDirectory })
      await store.create('alice', plant(BigInt(restarts + 1)))
    }
    return nodeFiles.open(path, mode)
  }
  assert.match(await checkDirectory(data, { ...nodeFiles, open }), /is sound: 3 plants/)
  await store.close()
})

test('journal: the next one begins before one is too long, though none is compacted', async () => {
  const data = `${await temporaryDirectory()}/data`
  const store = await openStore(data, { compactBytes: 2 ** 30, maxJournalBytes: 1000 })
  for (let id = 1n; id <= 20n; id++)
    assert.equal(await store.create('alice', plant(id, 'x'.repeat(300))), 'stored')
  // A line that is longer than that has a journal for itself.
  assert.equal(await store.create('alice', plant(21n, 'x'.repeat(3000))), 'stored')
  assert.equal(await store.create('alice', plant(22n, 'x')), 'stored')
  const journals = readdirSync(data).filter((name) => name.endsWith('.log'))
  assert.equal(journals.length, 12)
  await store.close()
  assert.match(await checkDirectory(data), /is sound: 22 plants/)
  const again = await openStore(data)
  assert.equal((await list(again)).length, 22)
  await again.close()
})
