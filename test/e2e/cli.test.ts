import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { test } from 'node:test'
import { parseArgs, promisify } from 'node:util'
import initSqlJs from 'sql.js'
import { VARIABLES } from '../../dist/config.js'
import { call, post, type Reply } from '../support/http.ts'
import { MAIN, preload, run, startProcess } from '../support/process.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'

/** What `serve` needs besides its data directory. */
const SERVE = {
  PLANTS_ISSUER: 'i',
  PLANTS_AUDIENCE: 'a',
  PLANTS_JWT_SECRET: 'x'.repeat(32),
  PLANTS_LISTEN: '127.0.0.1:0',
  PLANTS_ADMIN_LISTEN: 'off',
}
const SQL = await initSqlJs()

test('cli: --help prints every variable, --version the version of the package', async () => {
  const help = await run(['--help'])
  assert.equal(help.status, 0)
  const lines = help.stdout.split('\n')
  for (const { name, fallback, meaning } of VARIABLES) {
    const said = lines.find((line) => line.startsWith(`  ${name} `))?.slice(name.length + 2)
    assert.equal(said?.trim(), fallback === '' ? meaning : `${meaning} (default ${fallback})`)
  }
  // The project's manifest, which has this member.
  const { version } = JSON.parse(
    readFileSync(new URL('../../package.json', import.meta.url), 'utf8'),
  ) as { version: string }
  assert.deepEqual(await run(['--version']), { status: 0, stdout: `${version}\n`, stderr: '' })
})

test('cli: a wrong command line ends with status 2 and the usage', async () => {
  for (const args of [
    ['bogus'],
    ['constructor'],
    ['serve', 'x'],
    ['serve', '--nope'],
    ['export'],
    ['export', 'a', 'b'],
    ['check', '--dev'],
    ['token'],
    ['token', '--sub', 'a', '--ttl', '0'],
  ]) {
    const { status, stderr } = await run(args)
    assert.equal(status, 2, args.join(' '))
    assert.match(stderr, /^plant-store: .+\nusage: plant-store/, args.join(' '))
  }
})

test('cli: a wrong configuration ends with status 2 and changes nothing', async () => {
  const directory = await temporaryDirectory()
  const { status, stdout, stderr } = await run(
    ['serve'],
    { PLANTS_DATA: 'data', PLANTS_LISTEN: 'x', PLANTS_RATE_LIMIT: 'many' },
    directory,
  )
  assert.deepEqual([status, stdout], [2, ''])
  assert.deepEqual(
    stderr.match(/^plant-store: PLANTS_\w+/gm),
    ['PLANTS_LISTEN', 'PLANTS_ISSUER', 'PLANTS_AUDIENCE', 'PLANTS_RATE_LIMIT'].map(
      (name) => `plant-store: ${name}`,
    ),
  )
  assert.deepEqual(readdirSync(directory), [])
  const dev = await run(
    ['serve', '--dev'],
    { PLANTS_DATA: 'data', PLANTS_JWKS_URL: 'https://issuer.test' },
    directory,
  )
  assert.equal(dev.status, 2)
  assert.match(dev.stderr, /PLANTS_JWKS_URL cannot be used with --dev/)
  assert.deepEqual(readdirSync(directory), [])
})

test('serve --dev: prints a curl line for a unix socket', async (t) => {
  const directory = await temporaryDirectory()
  const env = { PLANTS_LISTEN: `unix:${join(directory, 'plants socket')}` }
  const server = await startProcess(t, join(directory, 'data'), env, ['serve', '--dev'])
  for (const line of await curlLines(server.output)) assert.equal((await asCurl(line)).status, 200)
})

test('serve --dev: its curl lines work, and kill -9 loses no plant and no key', async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  const first = await startProcess(t, directory, {}, ['serve', '--dev'])
  const lines = await curlLines(first.output)
  assert.equal(lines.length, 2)
  const [created, listed] = [await asCurl(lines[0]), await asCurl(lines[1])]
  assert.deepEqual([created.status, created.json()], [200, { name: 'Monstera', tag: 'indoor' }])
  assert.deepEqual([listed.status, listed.json()], [200, [{ name: 'Monstera', tag: 'indoor' }]])
  assert.equal(statSync(join(directory, 'dev.key')).mode & 0o777, 0o600)
  await first.kill('SIGKILL')

  const second = await startProcess(t, directory, {}, ['serve', '--dev'])
  const oldToken = /Bearer ([\w.-]+)/.exec(lines[0] ?? '')?.[1]
  assert.deepEqual((await call(second.port, { token: oldToken })).json(), [
    { name: 'Monstera', tag: 'indoor' },
  ])
  const made = await run(['token', '--sub', 'bob', '--ttl', '60'], { PLANTS_DATA: directory })
  assert.equal(made.status, 0)
  assert.deepEqual((await call(second.port, { token: made.stdout.trim() })).json(), [])
  assert.equal(await second.kill('SIGTERM'), 0)
})

test('serve --dev: tokens have the claims that the configuration names', async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  const claims = {
    PLANTS_OWNER_CLAIM: 'tenant',
    PLANTS_AUDIENCE_CLAIM: 'client_id',
    PLANTS_SCOPE_CLAIM: 'roles',
    PLANTS_READ_SCOPE: 'plants:read',
    PLANTS_WRITE_SCOPE: 'plants:write',
  }
  const server = await startProcess(t, directory, claims, ['serve', '--dev'])
  for (const line of await curlLines(server.output)) assert.equal((await asCurl(line)).status, 200)
  const env = { ...claims, PLANTS_DATA: directory }
  const reader = (
    await run(['token', '--sub', 'alice', '--scope', 'plants:read'], env)
  ).stdout.trim()
  assert.deepEqual((await call(server.port, { token: reader })).json(), [
    { name: 'Monstera', tag: 'indoor' },
  ])
  assert.equal((await post(server.port, { id: 2, name: 'Fern' }, { token: reader })).status, 403)
})

test('token: without a development key, says what to do', async () => {
  const { status, stderr } = await run(['token', '--sub', 'bob'], {
    PLANTS_DATA: await temporaryDirectory(),
  })
  assert.equal(status, 1)
  assert.match(stderr, /no development key.*serve --dev/)
})

test('serve: locked data, or a port in use, ends with status 1 and says why', async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  const holder = await startProcess(t, directory)
  const second = await run(['serve'], { ...SERVE, PLANTS_DATA: directory })
  assert.equal(second.status, 1)
  assert.match(second.stderr, new RegExp(`${holder.child.pid}`))

  const taken = createServer().listen(0, '127.0.0.1')
  t.after(() => taken.close())
  await new Promise((resolve) => taken.once('listening', resolve))
  const address = taken.address()
  assert.ok(address !== null && typeof address === 'object')
  const where = `127.0.0.1:${address.port}`
  for (const name of ['PLANTS_LISTEN', 'PLANTS_ADMIN_LISTEN']) {
    const { status, stderr } = await run(['serve'], {
      ...SERVE,
      PLANTS_DATA: join(await temporaryDirectory(), 'data'),
      [name]: where,
    })
    const why = 'another process listens there; stop it or choose another address'
    const line = `plant-store: ${name}: cannot listen on ${where}: ${why}`
    assert.deepEqual([status, stderr.slice(0, line.length)], [1, line])
  }
})

test('serve: SIGTERM and SIGINT end with status 0 and leave one SQLite file', async (t) => {
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    const directory = join(await temporaryDirectory(), 'data')
    const server = await startProcess(t, directory)
    assert.equal((await post(server.port, { id: 1, name: 'Fern' })).status, 200)
    assert.equal(await server.kill(signal), 0)
    assert.deepEqual(readdirSync(directory).sort(), ['lock-1', 'plants.sqlite'])
    const bytes = readFileSync(join(directory, 'plants.sqlite'))
    assert.equal(bytes.toString('latin1', 0, 15), 'SQLite format 3')
    assert.equal(statSync(join(directory, 'plants.sqlite')).mode & 0o777, 0o600)
    assert.equal(statSync(directory).mode & 0o777, 0o700)
    const again = await startProcess(t, directory)
    assert.deepEqual((await call(again.port)).json(), [{ name: 'Fern' }])
    assert.equal(await again.kill(signal), 0)
  }
})

test('check: counts plants, names damage, and reports a missing store', async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  assert.match((await run(['check'], { PLANTS_DATA: directory })).stderr, /there is no store in/)
  const server = await startProcess(t, directory)
  for (let id = 1; id <= 3; id++) await post(server.port, { id, name: 'Fern' })
  const running = await run(['check'], { PLANTS_DATA: directory })
  assert.deepEqual([running.status, running.stderr], [0, ''])
  assert.match(running.stdout, /is sound: 3 plants in no snapshot and 1 journal, up to write 3/)
  await server.kill('SIGKILL')
  const journal = join(directory, 'journal-00000001.log')
  const bytes = readFileSync(journal)
  bytes[100] = (bytes[100] ?? 0) ^ 1
  writeFileSync(journal, bytes)
  const damaged = await run(['check'], { PLANTS_DATA: directory })
  assert.equal(damaged.status, 1)
  assert.match(damaged.stderr, /journal-00000001\.log is damaged at byte \d+/)
  const start = await run(['serve'], { ...SERVE, PLANTS_DATA: directory })
  assert.equal(start.status, 1)
  assert.match(start.stderr, /journal-00000001\.log is damaged at byte \d+/)
  assert.deepEqual(readFileSync(journal), bytes)
})

test('export, import: while a service runs, every owner gets the same plants', async (t) => {
  const directory = await temporaryDirectory()
  const [data, other, file] = [
    join(directory, 'data'),
    join(directory, 'other'),
    join(directory, 'plants.db'),
  ]
  const server = await startProcess(t, data)
  for (const [id, name] of [
    ['-9223372036854775808', 'low'],
    ['9223372036854775807', 'high'],
    ['0', 'nul \\u0000 and \\"quotes\\"'],
  ]) {
    assert.equal((await post(server.port, `{"id":${id},"name":"${name}"}`)).status, 200)
  }
  assert.equal(
    (await post(server.port, { id: 1, name: 'of bob', tag: '🌱' }, { token: token('bob') })).status,
    200,
  )
  const exported = await run(['export', file], { PLANTS_DATA: data })
  assert.deepEqual([exported.status, exported.stdout], [0, `4 plants written to ${file}\n`])
  assert.match((await run(['export', file], { PLANTS_DATA: data })).stderr, /exists already/)
  assert.match(
    (await run(['import', file], { PLANTS_DATA: data })).stderr,
    new RegExp(`${server.child.pid}`),
    'a service holds the directory',
  )

  const imported = await run(['import', file], { PLANTS_DATA: other })
  assert.deepEqual(
    [imported.status, imported.stdout],
    [0, `4 plants read from ${file}; all of them are in the store\n`],
  )
  const copy = await startProcess(t, other)
  assert.deepEqual((await call(copy.port)).json(), [
    { name: 'low' },
    { name: 'nul \u0000 and "quotes"' },
    { name: 'high' },
  ])
  assert.deepEqual((await call(copy.port, { token: token('bob') })).json(), [
    { name: 'of bob', tag: '🌱' },
  ])
  assert.equal(await copy.kill('SIGTERM'), 0)
  assert.equal(
    (await run(['import', file], { PLANTS_DATA: other })).status,
    0,
    'the same plants again are no conflict',
  )
})

test('import: takes an edited snapshot, and names the rows that it refuses', async (t) => {
  const directory = await temporaryDirectory()
  const [data, file] = [join(directory, 'data'), join(directory, 'edited.sqlite')]
  const server = await startProcess(t, data)
  for (const id of [1, 2]) await post(server.port, { id, name: 'Fern' })
  assert.equal(await server.kill('SIGTERM'), 0)
  const database = new SQL.Database(readFileSync(join(data, 'plants.sqlite')))
  database.run(`UPDATE plants SET name = 'Moss' WHERE id = 2;
    INSERT INTO plants VALUES ('alice', 3, 0, 'Ivy', NULL), ('alice', 4, 0, x'00', NULL)`)
  writeFileSync(join(data, 'plants.sqlite.edited'), database.export())
  renameSync(join(data, 'plants.sqlite'), join(directory, 'original.sqlite'))
  renameSync(join(data, 'plants.sqlite.edited'), join(data, 'plants.sqlite'))
  const refused = await run(['check'], { PLANTS_DATA: data })
  assert.equal(refused.status, 1)
  assert.match(refused.stderr, /plants\.sqlite is damaged at byte \d+: .*plant-store import/)
  renameSync(join(data, 'plants.sqlite'), file)
  renameSync(join(directory, 'original.sqlite'), join(data, 'plants.sqlite'))

  const imported = await run(['import', file], { PLANTS_DATA: data })
  assert.equal(imported.status, 1, imported.stdout + imported.stderr)
  assert.match(
    imported.stderr,
    /not imported: owner "alice", id 2: the store has another plant with this id/,
  )
  assert.match(imported.stderr, /not imported: owner "alice", id 4: .*must be text/)
  assert.match(imported.stderr, /2 of 4 plants are in the store/)
  const again = await startProcess(t, data)
  assert.deepEqual((await call(again.port)).json(), [
    { name: 'Fern' },
    { name: 'Fern' },
    { name: 'Ivy' },
  ])
  assert.equal(await again.kill('SIGTERM'), 0)

  writeFileSync(join(directory, 'text'), 'no database')
  const garbage = await run(['import', join(directory, 'text')], {
    PLANTS_DATA: join(directory, 'new'),
  })
  assert.equal(garbage.status, 1)
  assert.match(garbage.stderr, /cannot be read as a SQLite file/)
  assert.ok(!existsSync(join(directory, 'new')), 'no store is opened for such a file')
})

test('import, check: end with the same status if no process reads the output', async () => {
  const directory = await temporaryDirectory()
  const [data, file] = [join(directory, 'data'), join(directory, 'plants.db')]
  const database = new SQL.Database()
  database.run(`CREATE TABLE plants (owner, id, name, tag);
    WITH RECURSIVE ids(id) AS (VALUES (1) UNION ALL SELECT id + 1 FROM ids WHERE id < 5000)
    INSERT INTO plants SELECT iif(id < 5000, 7, 'alice'), id, 'Fern', NULL FROM ids`)
  writeFileSync(file, database.export())
  const env = { PLANTS_DATA: data }
  assert.equal(await statusUnread(['import', file], env), 1)
  assert.match((await run(['check'], env)).stdout, /1 plants/)
  assert.equal(await statusUnread(['check'], env), 0)
  assert.equal(await statusUnread(['export', file], env), 1)
})

test('check, export: fail without a store, export also without hard links', async () => {
  const directory = await temporaryDirectory()
  const [data, file] = [join(directory, 'data'), join(directory, 'plants.db')]
  mkdirSync(data)
  const missing = { status: 1, stdout: '', stderr: `plant-store: there is no store in ${data}\n` }
  assert.deepEqual(await run(['check'], { PLANTS_DATA: data }), missing)
  assert.deepEqual(await run(['export', file], { PLANTS_DATA: data }), missing)
  writeFileSync(join(data, 'journal-00000001.log'), '')
  const withoutLinks = await preload(`
    import fs from 'node:fs/promises'
    import { syncBuiltinESMExports } from 'node:module'
    fs.link = async () => { throw Object.assign(new Error('EPERM: link'), { code: 'EPERM' }) }
    syncBuiltinESMExports()`)
  const { status, stderr } = await run(['export', file], { PLANTS_DATA: data, ...withoutLinks })
  assert.equal(status, 1)
  assert.match(stderr, /^plant-store: the file system of .* has no hard links, .*: name a file on/)
  assert.deepEqual(readdirSync(directory), ['data'])
})

/** The status of a command whose output no process reads. */
async function statusUnread(
  args: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<number | null> {
  const child = spawn(process.execPath, [MAIN, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  child.stdout.destroy()
  child.stderr.destroy()
  // The event's argument: the status, or null after a signal.
  const [status] = (await once(child, 'exit')) as [number | null]
  return status
}

async function curlLines(output: () => string): Promise<string[]> {
  const lines = (): string[] => output().match(/^curl .*$/gm) ?? []
  await until('both curl lines are there', () => lines().length >= 2)
  return lines()
}

/** Sends what curl would send. A shell splits the line, as when a user pastes it. */
async function asCurl(line = ''): Promise<Reply> {
  const script = `curl() { printf '%s\\0' "$@"; }\n${line}`
  const { stdout } = await promisify(execFile)('sh', ['-c', script])
  const { values, positionals } = parseArgs({
    args: stdout.split('\0').slice(0, -1),
    allowPositionals: true,
    options: {
      include: { type: 'boolean', short: 'i' },
      header: { type: 'string', short: 'H', multiple: true, default: [] },
      data: { type: 'string', short: 'd' },
      'unix-socket': { type: 'string' },
    },
  })
  assert.equal(positionals.length, 1, line)
  const { port, pathname } = new URL(positionals[0] ?? '')
  const { data, header, 'unix-socket': socket = Number(port) } = values
  return call(socket, {
    token: undefined,
    path: pathname,
    headers: Object.fromEntries(header.map((each) => each.split(': '))),
    ...(data === undefined ? {} : { method: 'POST', body: data }),
  })
}
