import assert from 'node:assert/strict'
import { cp } from 'node:fs/promises'
import { Agent } from 'node:http'
import { join } from 'node:path'
import { test } from 'node:test'
import { call, type CallOptions, post, type Reply } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { sampled } from '../support/scale.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, Wire } from '../support/wire.ts'

/**
 * Owners that a careless key, comparison, normalization or encoding would confuse: those of one row
 * most easily.
 */
const SIMILAR = [
  ['alice', 'Alice', 'ALICE', 'alice ', ' alice', 'alice\t', 'alice\n', 'alic', 'alice1'],
  ['1 alice', '11 alice', '1', '01', '1.0', '1e0', '-1', '0', '00', '%', '_', '*', '?'],
  ['alice%', 'alice/', '/alice', 'alice/1', 'alice0', "a'b", 'a"b', "' OR 1=1 --"],
  // Bytes that end, begin or vanish from a text somewhere.
  ['alice\0', 'alice\0x', '\0', '\0\0', '\0alice', '\ufeff', '\ufeff\ufeff', '\ufeffalice'],
  ['\ufeff\ufeffalice', 'alice\ufeff', '\ufeff\0alice', '\ufffe', '\uffff', '\ufffd'],
  ['alice\u200b', 'alice\u200d', 'alice\u00ad', 'alice\u2060', 'alice\ufe0f', '\u202ealice'],
  ['alice\u00a0', 'alice\u3000'],
  // The same letter to some readers: normalization, case folding, width.
  ['é', 'e\u0301', 'ａlice', 'аlice', 'ß', 'ss', 'SS', 'ſs', 'İ', 'i\u0307', 'ı', 'i', 'I'],
  ['K', '\u212a', 'Å', '\u212b', 'A\u030a', 'ﬁ', 'fi', 'Σ', 'σ', 'ς'],
  ['💐', '💐💐', '\u{1f490}\ufe0f', '\u{10ffff}', '\ud7ff', '\ue000'],
  ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'prototype'],
  ['null', 'undefined', 'NaN', '[object Object]'],
  // As long as a token can carry; they differ in the last character only.
  ['x'.repeat(8000), `${'x'.repeat(8000)}y`, `${'x'.repeat(8000)}\0`, 'x'.repeat(7999)],
  [`y${'x'.repeat(7999)}`],
]
const nameOf = (at: number): string => `plant ${at}`

test('isolation', async (t) => {
  const owners = sampled(SIMILAR, 3, t).flat()
  const { port, adminPort, dataDirectory, logLines } = await startService(t)
  const tokens = owners.map((owner) => token(owner))
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())
  /** Every owner at once, so that creates share batches of writes. */
  const byAll = (ask: (options: CallOptions, at: number) => Promise<Reply>) =>
    Promise.all(tokens.map((bearer, at) => ask({ token: bearer, agent }, at)))
  const plantOf = (at: number) => ({ name: nameOf(at), tag: nameOf(at) })
  const assertAll = (replies: readonly Reply[], expected: (at: number) => unknown): void => {
    for (const [at, reply] of replies.entries()) {
      const who = JSON.stringify(owners[at]).slice(0, 50)
      assert.deepEqual([verdict(reply), reply.json()], [200, expected(at)], who)
    }
  }

  const assertRefused = (replies: readonly Reply[], condition: string): void => {
    const verdicts = replies.map(verdict)
    const others = owners.filter((_, at) => verdicts[at] !== condition)
    assert.deepEqual(others, [])
  }

  await t.test(`${owners.length} owners create one id, and each has its own plant`, async () => {
    assertAll(await byAll((options, at) => post(port, { id: 1, ...plantOf(at) }, options)), plantOf)
    const other = (at: number) => ({ id: 1, name: nameOf(at + 1) })
    assertRefused(await byAll((options, at) => post(port, other(at), options)), 'idTaken')
  })

  const assertOwn = async (target: number, ...paths: readonly string[]): Promise<void> => {
    for (const path of paths)
      assertAll(await byAll((options) => call(target, { path, ...options })), (at) => [plantOf(at)])
  }

  await t.test('each owner lists its own plants, from the store and from the cache', () =>
    assertOwn(port, '/plants', '/plants?limit=1', '/plants'),
  )

  await t.test('the same after a replay of the journal, and from a snapshot', async (inner) => {
    const copy = join(await temporaryDirectory(), 'data')
    // The journal as a kill would leave it.
    await cp(dataDirectory, copy, { recursive: true, filter: (path) => !/lock-\d+$/.test(path) })
    const replayed = await startService(inner, { data: copy, logLevel: 'silent' })
    await assertOwn(replayed.port, '/plants')
    await replayed.close()
    const snapshot = await startService(inner, { data: copy, logLevel: 'silent' })
    await assertOwn(snapshot.port, '/plants?limit=1')
  })

  await t.test('a cursor of one owner is refused for every other, with the same ids', async () => {
    await byAll((options, at) => post(port, { id: 2, name: `second ${at}` }, options))
    const cursors = (await byAll((options) => call(port, { path: '/plants?limit=1', ...options })))
      .map((reply) => /after=([\w-]+)/.exec(headerLines(reply, 'link')[0] ?? '')?.[1])
      .map((cursor) => cursor ?? assert.fail())
    assert.equal(new Set(cursors).size, owners.length)
    // The next owners in the list are similar; one far away is tried too.
    for (const step of [0, 1, Math.floor(owners.length / 2)]) {
      const replies = await byAll((options, at) => {
        const cursor = cursors[(at + step) % owners.length] ?? ''
        return call(port, { path: `/plants?limit=1&after=${cursor}`, ...options })
      })
      if (step === 0) assertAll(replies, (at) => [{ name: `second ${at}` }])
      else assertRefused(replies, 'afterInvalid')
    }
  })

  await t.test('the log has a hash of each owner and no name; metrics have no owner', async () => {
    await until('it is logged', () => logLines.some((line) => line.includes('"status":400')))
    const hashes = logLines.map((line) => /"owner":"([^"]*)"/.exec(line)?.[1])
    assert.equal(new Set(hashes.filter((hash) => hash !== undefined)).size, owners.length)
    const [text, before] = [logLines.join('\n'), await scrape(adminPort)]
    for (const part of ['alice', 'ALICE', '__proto__', 'xxxxxxxx', 'plant 1', 'second 1'])
      assert.ok(!text.includes(part) && !before.text.includes(part), part)
    // A new owner adds no series.
    const bearer = { token: token('a new owner') }
    for (const at of [0, 1]) await post(port, { id: 1, name: nameOf(at) }, bearer)
    await call(port, bearer)
    assert.deepEqual([...(await scrape(adminPort)).samples.keys()], [...before.samples.keys()])
  })

  await t.test('whether another owner has an id changes nothing in any answer', async () => {
    // Nearly every owner has the id 1, and none has 77.
    const shape = async (owner: string, id: number) => {
      const bearer = { token: token(owner) }
      const replies = [
        await post(port, { id, name: 'mine' }, bearer),
        await post(port, { id, name: 'mine' }, bearer),
        await post(port, { id, name: 'other' }, bearer),
        await call(port, { ...bearer, path: '/plants?limit=1' }),
      ]
      return replies.map((reply) => [
        verdict(reply),
        reply.text,
        { ...reply.headers, date: '', 'request-id': '' },
      ])
    }
    assert.deepEqual(await shape('new one', 1), await shape('new two', 77))
  })

  await t.test('requests of several owners on one connection do not mix', async () => {
    const wire = await Wire.to(port)
    const asking = Array.from({ length: 40 }, (_, at) => at % owners.length)
    for (let from = 0; from < asking.length; from += 8) {
      const asked = asking.slice(from, from + 8).map((at) => ({ token: token(owners[at]) }))
      wire.write(asked.map((bearer) => head('GET', '/plants', bearer)).join(''))
      await wire.answers(from + 8)
    }
    assert.deepEqual(
      (await wire.answers(asking.length)).map(({ body }) => JSON.parse(body) as unknown),
      asking.map((at) => [plantOf(at), { name: `second ${at}` }]),
    )
  })

  await t.test('members of a team share plants if a team claim owns them', async (inner) => {
    const team = await startService(inner, { ownerClaim: 'team' })
    const of = (sub: string, claim: unknown) => ({ token: token(sub, { team: claim }) })
    await post(team.port, { id: 1, name: 'shared' }, of('alice', 'green'))
    const [green, red] = [of('bob', 'green'), of('alice', 'red')]
    assert.deepEqual((await call(team.port, green)).json(), [{ name: 'shared' }])
    assert.deepEqual((await call(team.port, red)).json(), [])
    for (const claim of [undefined, '', 7, null, ['green'], '\ud800'])
      assert.equal(verdict(await call(team.port, of('alice', claim))), 'tokenUnacceptable')
  })
})
