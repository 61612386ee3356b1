import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Plant } from '../../dist/plants/plant.js'
import { reasonOf } from '../../dist/errors.js'
import { type PlantList, StoreUnavailable } from '../../dist/plants/store.js'
import { batchLine, headerLine, journalName } from '../../dist/store/sqljs/journal-format.js'
import { ALICE, listOf, startBare, listFrom } from '../support/bare.ts'
import { call, type Reply } from '../support/http.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

function namesOf(text: string): string[] {
  return (JSON.parse(text) as Plant[]).map(({ name }) => name)
}

/** A directory whose journal has alice's plants with these ids. */
async function dataOf(ids: readonly number[]): Promise<string> {
  const directory = await temporaryDirectory()
  const plants = ids.map((id) => ['alice', String(id), String(id)] as const)
  await writeFile(
    join(directory, journalName(1)),
    Buffer.concat([headerLine(1), batchLine(1, plants)]),
  )
  return directory
}

test('streaming: lists of 10,100 plants', async (t) => {
  const count = 10_100
  // Even ids, so that others fit between them.
  const ids = Array.from({ length: count }, (_, at) => 2 * at)
  const dataDirectory = await dataOf(ids)
  const { port, service } = await startService(t, { data: dataDirectory, logLevel: 'silent' })
  const all = ids.map(String)
  const text = all.join()

  await t.test('all of them come, in order, as valid JSON', async () => {
    const reply = await call(port)
    assert.equal(verdict(reply), 200)
    assert.deepEqual(headerLines(reply, 'content-type'), ['application/json'])
    assert.equal(namesOf(reply.text).join(), text)
  })

  await t.test('HEAD has no body, and the next response follows at once', async () => {
    const wire = await Wire.to(port)
    const answers = await wire
      .write(
        head('HEAD', '/plants') +
          head('HEAD', '/plants?limit=5000') +
          head('GET', '/plants?limit=1'),
      )
      .answers(3, [0, 1])
    assert.deepEqual(answers.map(verdict), [200, 200, 200])
    assert.equal(headerLines(answers[1] ?? assert.fail(), 'link').length, 1)
    wire.destroy()
  })

  await t.test('HTTP/1.0 gets the whole list, then the end of the connection', async () => {
    for (const lines of [[], ['Connection: keep-alive']]) {
      const wire = await Wire.to(port)
      const answers = await wire
        .write(head('GET', '/plants', { version: '1.0', lines }))
        .allAnswers()
      assert.deepEqual(answers.map(verdict), [200])
      assert.equal(namesOf(answers[0]?.body ?? '').join(), text)
      wire.destroy()
    }
  })

  await t.test('pages of any size, read to the end, are the whole list', async () => {
    for (const limit of [999, 1000, 1001, 5000, 10_099, 10_100, 10_101]) {
      const names: string[] = []
      let pages = 0
      for (let path: string | undefined = `/plants?limit=${limit}`; path !== undefined; pages++) {
        const reply: Reply = await call(port, { path })
        names.push(...namesOf(reply.text))
        const query = /^<(.*)>/.exec(headerLines(reply, 'link')[0] ?? '')?.[1]
        path = query === undefined ? undefined : `/plants${query}`
      }
      assert.deepEqual([names.length, pages], [count, Math.ceil(count / limit)], String(limit))
      assert.equal(names.join(), text)
    }
  })

  await t.test('limit=5000 is as of the request, and its cursor goes on without loss', async () => {
    const bearer = token('alice')
    const wire = await Wire.to(port)
    wire.write(head('GET', '/plants?limit=5000'))
    while (!wire.text.includes('\r\n\r\n')) await sleep(1)
    wire.socket.pause()
    const between = Array.from({ length: 60 }, (_, at) => at * 300 + 1)
    const other = await Wire.to(port)
    const posts = between.map((id) => postBytes({ id, name: String(id) }, { token: bearer }))
    for (let sent = 0; sent < posts.length; sent += 15) {
      const added = await other.write(posts.slice(sent, sent + 15).join('')).answers(sent + 15)
      assert.ok(added.every(({ status }) => status === 200))
    }
    other.destroy()
    wire.socket.resume()
    const [answer] = await wire.answers(1)
    assert.ok(answer)
    const first = namesOf(answer.body)
    assert.equal(first.length, 5000)
    assert.equal(Number(first.at(-1)), 2 * 4999)
    assert.equal(first.join(), all.slice(0, 5000).join())
    const query = /^<(.*)>/.exec(headerLines(answer, 'link')[0] ?? '')?.[1]
    const rest = namesOf((await call(port, { path: `/plants${query}` })).text)
    const after = between.filter((id) => id > 2 * 4999)
    const expected = [...ids.slice(5000), ...after]
      .sort((a, b) => a - b)
      .slice(0, 5000)
      .map(String)
    assert.equal(rest.join(), expected.join())
    wire.destroy()
  })

  await t.test('readers that leave in the middle do no harm', async () => {
    for (let round = 0; round < 20; round++) {
      const wire = await Wire.to(port)
      wire.write(head('GET', round % 2 === 0 ? '/plants' : '/plants?limit=5000'))
      if (round % 4 > 1) while (wire.text === '') await sleep(1)
      wire.socket.resetAndDestroy()
    }
    assert.equal(namesOf((await call(port)).text).length, count + 60)
  })

  await t.test('others are answered while a long list is read', async () => {
    const slow = await Wire.to(port)
    slow.socket.pause()
    slow.write(head('GET', '/plants').repeat(10))
    for (let round = 0; round < 10; round++)
      assert.equal(verdict(await call(port, { path: '/plants?limit=1' })), 200)
    slow.destroy()
  })

  await service.close()
})

test('streaming: a failure in the middle never looks like the end of the list', async (t) => {
  let wire: Wire
  const { port, failures } = await startBare(t, {
    store: {
      list: (): PlantList => {
        let calls = 0
        return listFrom(async () => {
          if (calls++ < 3) return [{ name: 'x'.repeat(1000) }]
          // libuv reports a reset as a normal end if it comes together with the last bytes.
          await until('the client has three plants', () => wire.text.split('xx"').length > 3)
          throw new StoreUnavailable('the disk is gone')
        })
      },
    },
  })
  for (const version of ['1.1', '1.0']) {
    wire = await Wire.to(port)
    await assert.rejects(wire.write(head('GET', '/plants', { version })).answers(2))
    assert.match(wire.text, /^HTTP\/1\.1 200 /)
    assert.ok(!wire.text.includes('\r\n0\r\n\r\n'))
    assert.ok(!wire.text.includes(']'))
    // To HTTP/1.0 a normal end of the connection is the end of the list.
    assert.match(String(wire.error), /ECONNRESET/)
    wire.destroy()
  }
  // The client cannot be told: the log has the cause.
  assert.deepEqual(failures.map(reasonOf), Array(2).fill('the disk is gone'))
})

test('streaming: a reader may be slow, also if its request never ends', async (t) => {
  const path = join(await temporaryDirectory(), 'http.sock')
  const plants = [{ name: 'x'.repeat(2 ** 20) }]
  const bare = await startBare(t, { path, store: { list: () => listOf([plants]) } })
  // More than is read of a body that is not wanted.
  const unread = ['Content-Length: 16777217']
  for (const lines of [unread, ['Expect: 100-continue', ...unread]]) {
    const wire = await Wire.to(path)
    wire.socket.pause()
    wire.write(head('GET', '/plants', { lines }))
    await until('it is under way', () => bare.responses.held > 0)
    // Longer than a connection lingers after its last response.
    await sleep(1500)
    wire.socket.resume()
    const [answer = assert.fail()] = await wire.answers(1)
    assert.equal(answer.body, JSON.stringify(plants))
    await wire.end()
    await until('nothing is held', () => bare.responses.held === 0)
  }
  assert.deepEqual(bare.answered, ['GET 200', 'GET 200'])
})

test('streaming: a failure before the first byte is 500', async (t) => {
  for (const asynchronous of [false, true]) {
    const fail = (): never => {
      throw new Error('the disk is gone')
    }
    const list = (): PlantList =>
      asynchronous ? { next: async () => fail() } : { next: () => fail() }
    const { port } = await startBare(t, { store: { list } })
    const wire = await Wire.to(port)
    assert.deepEqual((await wire.write(head('GET', '/plants')).answers(1)).map(verdict), [
      'internal',
    ])
    wire.destroy()
  }
})

test('streaming: a list is read no further and holds nothing once its reader left', async (t) => {
  let [opened, chunks] = [0, 0]
  const plants = Array.from({ length: 100 }, () => ({ name: 'x'.repeat(1000) }))
  const list = (): PlantList => {
    opened++
    return listFrom(async () => {
      chunks++
      await sleep(30)
      return plants
    })
  }
  const { port, responses } = await startBare(t, { store: { list }, authenticate: () => ALICE })
  // Before the list has begun, at its start, in the middle; as HEAD; with a body; of a page.
  for (const [bytes, leaveAfter] of [
    [head('GET', '/plants'), -1],
    [head('GET', '/plants'), 0],
    [head('GET', '/plants'), 200_000],
    [head('HEAD', '/plants'), 0],
    [`${head('GET', '/plants', { lines: ['Content-Length: 100000'] })}abc`, 200_000],
    [head('GET', '/plants?limit=2000000000'), -1],
  ] as const) {
    const before = opened
    const wire = await Wire.to(port)
    wire.write(bytes)
    while (opened === before) await sleep(1)
    while (wire.text.length <= leaveAfter) await sleep(1)
    wire.socket.resetAndDestroy()
    await sleep(100)
    const after = chunks
    await sleep(100)
    assert.deepEqual([chunks, responses.held], [after, 0], `${bytes.slice(0, 60)} ${leaveAfter}`)
  }
})
