import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Plant } from '../../dist/plants/plant.js'
import { reasonOf } from '../../dist/errors.js'
import { type PlantList, StoreUnavailable } from '../../dist/plants/store.js'
import { batchLine, journalName } from '../../dist/store/sqljs/disk/journal-format.js'
import { listFrom, listOf, startBare, startOnPath } from '../support/bare.ts'
import { call } from '../support/http.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { oldHead } from '../support/store-files.ts'
import { changeTimers, until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { answersUntilEnd, firstAnswer, head, Wire } from '../support/wire.ts'

const COUNT = 10_100
/** How long the service reads on after the last response of a connection. */
const LINGER_MS = 1000
const GET = head('GET', '/plants')

function namesOf(text: string): string[] {
  return (JSON.parse(text) as Plant[]).map(({ name }) => name)
}

test(`streaming: lists of ${COUNT} plants`, async (t) => {
  const data = await temporaryDirectory()
  const plants = Array.from({ length: COUNT }, (_, id) => ['alice', `${id}`, `${id}`] as const)
  const journal = Buffer.concat([oldHead(1), batchLine(1, plants)])
  await writeFile(join(data, journalName(1)), journal)
  const { port } = await startService(t, { data, logLevel: 'silent' })
  const all = plants.map(([, , name]) => name).join()

  await t.test('all of them come, in order, as valid JSON', async () => {
    const reply = await call(port)
    assert.equal(verdict(reply), 200)
    assert.deepEqual(headerLines(reply, 'content-type'), ['application/json'])
    assert.equal(namesOf(reply.text).join(), all)
  })

  for (const wish of ['close', 'keep-alive'])
    await t.test(`HTTP/1.0 gets all, then the end of the connection; ${wish}`, async () => {
      const bytes = head('GET', '/plants', { version: '1.0', lines: [`Connection: ${wish}`] })
      const answers = await answersUntilEnd(port, bytes)
      assert.deepEqual(answers.map(verdict), [200])
      assert.equal(namesOf(answers[0]?.body ?? '').join(), all)
    })
})

for (const version of ['1.1', '1.0'])
  test(`streaming: a failure never looks like the end of the list; HTTP/${version}`, async (t) => {
    let wire: Wire
    const list = (): PlantList => {
      let calls = 0
      return listFrom(async () => {
        if (calls++ < 3) return [{ name: 'x'.repeat(1000) }]
        // libuv reports a reset as a normal end if it comes together with the last bytes.
        await until('the client has three plants', () => wire.text.split('xx"').length > 3)
        throw new StoreUnavailable('the disk is gone')
      })
    }
    const { port, failures } = await startBare(t, { store: { list } })
    wire = await Wire.to(port)
    await wire.write(head('GET', '/plants', { version })).end()
    assert.match(wire.text, /^HTTP\/1\.1 200 /)
    assert.ok(!wire.text.includes('\r\n0\r\n\r\n'))
    assert.ok(!wire.text.includes(']'))
    // To HTTP/1.0 a normal end of the connection is the end of the list.
    assert.match(String(wire.error), /ECONNRESET/)
    // The client cannot be told: the log has the cause.
    assert.deepEqual(failures.map(reasonOf), ['the disk is gone'])
  })

for (const [what, expectation] of [
  ['a request', []],
  ['an expectation', ['Expect: 100-continue']],
] as const)
  test(`streaming: a reader may be slow, also if ${what} never ends`, async (t) => {
    changeTimers(t, LINGER_MS, 100)
    const plants = [{ name: 'x'.repeat(2 ** 20) }]
    const bare = await startOnPath(t, { store: { list: () => listOf([plants]) } })
    // More than is read of a body that is not wanted.
    const lines = [...expectation, 'Content-Length: 16777217']
    const wire = await Wire.to(bare.path)
    wire.socket.pause()
    wire.write(head('GET', '/plants', { lines }))
    await until('it is under way', () => bare.responses.held > 0)
    // Longer than a connection lingers after its last response.
    await sleep(300)
    wire.socket.resume()
    const [answer] = await wire.answers(1)
    assert.equal(answer?.body, JSON.stringify(plants))
    await wire.end()
    await until('nothing is held', () => bare.responses.held === 0)
    assert.deepEqual(bare.answered, ['GET 200'])
  })

const fail = (): never => {
  throw new Error('the disk is gone')
}
for (const [when, next] of Object.entries({ 'at once': fail, later: async () => fail() }))
  test(`streaming: a failure before the first byte is 500; ${when}`, async (t) => {
    const { port } = await startBare(t, { store: { list: () => ({ next }) } })
    assert.equal(verdict(await firstAnswer(port, GET)), 'internal')
  })

for (const [what, bytes, leaveAfter] of [
  ['list not begun', GET, -1],
  ['list at its start', GET, 0],
  ['list in the middle', GET, 200_000],
  ['HEAD', head('HEAD', '/plants'), 0],
  [
    'list with a body',
    `${head('GET', '/plants', { lines: ['Content-Length: 100000'] })}abc`,
    200_000,
  ],
  ['page', head('GET', '/plants?limit=2000000000'), -1],
] as const)
  test(`streaming: once its reader left, nothing is read or held of a ${what}`, async (t) => {
    let [opened, chunks] = [0, 0]
    const plants = Array<Plant>(100).fill({ name: 'x'.repeat(1000) })
    const list = (): PlantList => {
      opened++
      return listFrom(async () => (chunks++, await sleep(10), plants))
    }
    const { port, responses, connections } = await startBare(t, { store: { list } })
    const wire = await Wire.to(port)
    wire.write(bytes)
    await until('it is under way', () => opened > 0 && wire.text.length > leaveAfter)
    wire.socket.resetAndDestroy()
    await until('it has left', () => connections.sockets.length === 0)
    await sleep(20)
    const after = chunks
    await sleep(50)
    assert.deepEqual([chunks, responses.held], [after, 0])
  })

test('streaming: once a stop has cut off a reader, no more of its list is read', async (t) => {
  let chunks = 0
  const plants = [{ name: 'x'.repeat(2 ** 20) }]
  const list = (): PlantList => listFrom(async () => (chunks++, plants))
  const { path, connections, responses } = await startOnPath(t, { store: { list } })
  const wire = await Wire.to(path)
  wire.socket.pause()
  wire.write(GET)
  await until('it has stalled', () => responses.held > 0)
  assert.equal(await connections.drain(0), 1)
  await until('nothing is held', () => responses.held === 0)
  // The store may be closed by now: it would fail, and an error would be logged.
  await sleep(20)
  assert.equal(chunks, 1)
})
