import assert from 'node:assert/strict'
import { cp } from 'node:fs/promises'
import { Agent } from 'node:http'
import { join } from 'node:path'
import { test } from 'node:test'
import { call, post } from '../support/http.ts'
import { scrape } from '../support/metrics.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, Wire } from '../support/wire.ts'

/** Owners that a careless key, comparison, normalization or encoding would confuse. */
const OWNERS = [
  'alice',
  'Alice',
  'ALICE',
  'alice ',
  ' alice',
  'alice\t',
  'alice\n',
  'alic',
  'alice1',
  '1 alice',
  '11 alice',
  '1',
  '01',
  '1.0',
  '1e0',
  '-1',
  '0',
  '00',
  '%',
  '_',
  '*',
  '?',
  'alice%',
  'alice/',
  '/alice',
  'alice/1',
  'alice0',
  "a'b",
  'a"b',
  "' OR 1=1 --",
  // Bytes that end, begin or vanish from a text somewhere.
  'alice\0',
  'alice\0x',
  '\0',
  '\0\0',
  '\0alice',
  '\ufeff',
  '\ufeff\ufeff',
  '\ufeffalice',
  '\ufeff\ufeffalice',
  'alice\ufeff',
  '\ufeff\0alice',
  '\ufffe',
  '\uffff',
  '\ufffd',
  'alice\u200b',
  'alice\u200d',
  'alice\u00ad',
  'alice\u2060',
  'alice\ufe0f',
  '\u202ealice',
  'alice\u00a0',
  'alice\u3000',
  // The same letter to some readers: normalization, case folding, width.
  'é',
  'e\u0301',
  'ａlice',
  'аlice',
  'ß',
  'ss',
  'SS',
  'ſs',
  'İ',
  'i\u0307',
  'ı',
  'i',
  'I',
  'K',
  '\u212a',
  'Å',
  '\u212b',
  'A\u030a',
  'ﬁ',
  'fi',
  'Σ',
  'σ',
  'ς',
  '💐',
  '💐💐',
  '\u{1f490}\ufe0f',
  '\u{10ffff}',
  '\ud7ff',
  '\ue000',
  '__proto__',
  'constructor',
  'toString',
  'hasOwnProperty',
  'prototype',
  'null',
  'undefined',
  'NaN',
  '[object Object]',
  // As long as a token can carry; they differ in the last character only.
  'x'.repeat(8000),
  `${'x'.repeat(8000)}y`,
  `${'x'.repeat(8000)}\0`,
  'x'.repeat(7999),
  `y${'x'.repeat(7999)}`,
]
const nameOf = (at: number): string => `plant ${at}`

test('isolation', async (t) => {
  const { port, adminPort, dataDirectory, logLines } = await startService(t)
  const tokens = OWNERS.map((owner) => token(owner))
  const agent = new Agent({ keepAlive: true })
  t.after(() => agent.destroy())

  await t.test(
    `${OWNERS.length} owners create one id at once, and each has its own plant`,
    async () => {
      // At once, so that they share batches of writes.
      const replies = await Promise.all(
        tokens.map((bearer, at) =>
          post(port, { id: 1, name: nameOf(at), tag: nameOf(at) }, { token: bearer, agent }),
        ),
      )
      for (const [at, reply] of replies.entries())
        assert.deepEqual(
          [verdict(reply), reply.json()],
          [200, { name: nameOf(at), tag: nameOf(at) }],
          JSON.stringify(OWNERS[at]).slice(0, 50),
        )
      const conflicts = await Promise.all(
        tokens.map((bearer, at) =>
          post(port, { id: 1, name: nameOf(at + 1) }, { token: bearer, agent }),
        ),
      )
      assert.deepEqual(
        conflicts.map(verdict),
        OWNERS.map(() => 'idTaken'),
      )
    },
  )

  const assertOwn = async (target: number): Promise<void> => {
    for (const path of ['/plants', '/plants?limit=1', '/plants', '/plants?limit=1']) {
      const replies = await Promise.all(
        tokens.map((bearer) => call(target, { token: bearer, path, agent })),
      )
      for (const [at, reply] of replies.entries())
        assert.deepEqual(
          [verdict(reply), reply.json()],
          [200, [{ name: nameOf(at), tag: nameOf(at) }]],
          JSON.stringify(OWNERS[at]).slice(0, 50),
        )
    }
  }

  await t.test('each owner lists its own plants, from the store and from the cache', () =>
    assertOwn(port),
  )

  await t.test('the same after a replay of the journal, and from a snapshot', async (inner) => {
    const copy = join(await temporaryDirectory(), 'data')
    // The journal as a kill would leave it.
    await cp(dataDirectory, copy, { recursive: true, filter: (path) => !/lock-\d+$/.test(path) })
    const replayed = await startService(inner, { data: copy, logLevel: 'silent' })
    await assertOwn(replayed.port)
    await replayed.close()
    const snapshot = await startService(inner, { data: copy, logLevel: 'silent' })
    await assertOwn(snapshot.port)
  })

  await t.test('a cursor of one owner is refused for every other, with the same ids', async () => {
    await Promise.all(
      tokens.map((bearer, at) =>
        post(port, { id: 2, name: `second ${at}` }, { token: bearer, agent }),
      ),
    )
    const pages = await Promise.all(
      tokens.map((bearer) => call(port, { token: bearer, path: '/plants?limit=1', agent })),
    )
    const cursors = pages.map(
      (reply) => /after=([\w-]+)/.exec(headerLines(reply, 'link')[0] ?? '')?.[1] ?? assert.fail(),
    )
    assert.equal(new Set(cursors).size, OWNERS.length)
    for (const [at, cursor] of cursors.entries()) {
      // The next owners in the list are similar; one far away is tried too.
      const others = [1, 2, 3, Math.floor(OWNERS.length / 2)].map(
        (step) => (at + step) % OWNERS.length,
      )
      const answers = await Promise.all(
        [at, ...others].map((who) =>
          call(port, { token: tokens[who], path: `/plants?limit=1&after=${cursor}`, agent }),
        ),
      )
      assert.deepEqual(
        answers.map(verdict),
        [200, ...others.map(() => 'afterInvalid')],
        JSON.stringify(OWNERS[at]).slice(0, 50),
      )
      assert.deepEqual(answers[0]?.json(), [{ name: `second ${at}` }])
    }
  })

  await t.test(
    'the log has a hash for each owner and no name; metrics have no owners',
    async () => {
      while (!logLines.some((line) => line.includes('"status":400')))
        await new Promise((resolve) => setImmediate(resolve))
      const hashes = new Set(
        logLines
          .map((line) => (JSON.parse(line) as Record<string, unknown>)['owner'])
          .filter((owner) => owner !== undefined),
      )
      assert.equal(hashes.size, OWNERS.length)
      const [text, before] = [logLines.join('\n'), await scrape(adminPort)]
      for (const part of ['alice', 'ALICE', '__proto__', 'xxxxxxxx', 'plant ', 'second '])
        assert.ok(!text.includes(part) && !before.text.includes(part), part)
      // A new owner adds no series.
      const bearer = token('a new owner')
      for (const at of [0, 1]) await post(port, { id: 1, name: nameOf(at) }, { token: bearer })
      await call(port, { token: bearer })
      assert.deepEqual([...(await scrape(adminPort)).samples.keys()], [...before.samples.keys()])
    },
  )

  await t.test('whether another owner has an id changes nothing in any answer', async () => {
    // Nearly every owner has the id 1, and none has 77.
    const shape = async (bearer: string, id: number) => {
      const replies = [
        await post(port, { id, name: 'mine' }, { token: bearer }),
        await post(port, { id, name: 'mine' }, { token: bearer }),
        await post(port, { id, name: 'other' }, { token: bearer }),
        await call(port, { token: bearer, path: '/plants?limit=1' }),
      ]
      return replies.map((reply) => [
        verdict(reply),
        reply.text,
        {
          ...reply.headers,
          date: '',
          'request-id': '',
          link: headerLines(reply, 'link').map((link) => link.replace(/after=[\w-]+/, '')),
        },
      ])
    }
    const [first, ...others] = [await shape(token('new one'), 1), await shape(token('new two'), 77)]
    for (const other of others) assert.deepEqual(other, first)
  })

  await t.test('requests of several owners on one connection do not mix', async () => {
    const wire = await Wire.to(port)
    for (let round = 0; round < 4; round++) {
      const owners = Array.from({ length: 10 }, (_, at) => (10 * round + at) % OWNERS.length)
      const answers = await wire
        .write(owners.map((at) => head('GET', '/plants', { token: token(OWNERS[at]) })).join(''))
        .answers(10 * (round + 1))
      assert.deepEqual(
        answers.slice(-10).map(({ body }) => body),
        owners.map((at) =>
          JSON.stringify([{ name: nameOf(at), tag: nameOf(at) }, { name: `second ${at}` }]),
        ),
      )
    }
    wire.destroy()
  })

  await t.test('members of a team share plants if a team claim owns them', async (inner) => {
    const team = await startService(inner, { ownerClaim: 'team' })
    await post(team.port, { id: 1, name: 'shared' }, { token: token('alice', { team: 'green' }) })
    assert.deepEqual((await call(team.port, { token: token('bob', { team: 'green' }) })).json(), [
      { name: 'shared' },
    ])
    assert.deepEqual((await call(team.port, { token: token('alice', { team: 'red' }) })).json(), [])
    for (const claim of [undefined, '', 7, null, ['green'], '\ud800'])
      assert.equal(
        verdict(await call(team.port, { token: token('alice', { team: claim }) })),
        'tokenUnacceptable',
      )
  })
})
