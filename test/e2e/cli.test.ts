import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { VARIABLES } from '../../dist/settings/table.js'
import { call, post } from '../support/http.ts'
import { type Environment, environment, launch, serviceEnvironment } from '../support/launch.ts'
import { command, MAIN, run, startProcess } from '../support/process.ts'
import { ROOT, VERSION } from '../support/release.ts'
import { directoryOf, filesLeftByKill } from '../store/sqljs/fixtures.ts'
import { HOSTILE, HOSTILE_ESCAPED, UNSAFE } from '../support/hostile.ts'
import { skipWithout, THOROUGH } from '../support/scale.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { sqliteFile } from '../support/store-files.ts'
import { until } from '../support/time.ts'

/** Settings of a service on a unix socket in a folder. */
const onSocket = (folder: string) => ({
  PLANTS_DATA: join(folder, 'data'),
  PLANTS_LISTEN: `unix:${folder}/plants.sock`,
  PLANTS_ADMIN_LISTEN: 'off',
})

test('cli: --help prints every variable, --version the version of the package', async () => {
  const help = await command(['--help'])
  assert.equal(help.status, 0)
  const lines = help.stdout.split('\n')
  for (const { name, fallback, meaning } of VARIABLES) {
    const said = lines.find((line) => line.startsWith(`  ${name} `))?.slice(name.length + 2)
    assert.equal(said?.trim(), fallback === '' ? meaning : `${meaning} (default ${fallback})`)
  }
  assert.deepEqual(await command(['import', '-h']), help, 'one text for all')
  const version = { status: 0, stdout: `${VERSION}\n`, stderr: '' }
  // As "node ." in the folder of the package.
  assert.deepEqual(await run(['--version'], {}, ROOT, '.'), version)
})

for (const [line, why] of [
  ['sreve', /there is no command "sreve"/],
  ['constructor', /there is no command/],
  ['completion bash', /there is no command/],
  ['serve x', /serve takes no argument/],
  ['--devv', /Unknown option '--devv'/],
  ['serve --devv', /Unknown option '--devv'/],
  ['import --help --nope', /Unknown option '--nope'/],
  ['export', /export takes one FILE/],
  ['export a b', /export takes one FILE/],
  ['check --dev', /check takes no --dev/],
  ['token', /token needs --sub NAME/],
  ['token --sub --ttl', /ambiguous\. Did you forget/],
  ['token --sub a --ttl 0', /--ttl must be a number of seconds/],
] as const)
  test(`cli: "${line}" ends with status 2, the reason and the usage`, async () => {
    const { status, stderr } = await command(line.split(' '))
    assert.equal(status, 2)
    assert.match(stderr, /^plant-store: .+\nusage: plant-store/)
    assert.match(stderr, why)
  })

const NO_SETTINGS = '"serve --dev" needs no setting'

for (const [line, variables, named, told] of [
  ['serve', { PLANTS_LISTEN: 'x' }, 'ISSUER AUDIENCE LISTEN', NO_SETTINGS],
  ['config', { PLANTS_LISTEN: 'x' }, 'ISSUER AUDIENCE LISTEN', NO_SETTINGS],
  ['serve --dev', { PLANTS_JWKS_URL: 'https://a' }, 'JWKS_URL', 'use the development key only'],
] as const)
  test(`cli: "${line}" with wrong settings ends with status 2, changes nothing`, async () => {
    const directory = await temporaryDirectory()
    const env = { PLANTS_DATA: 'data', ...variables }
    const { status, stdout, stderr } = await command(line.split(' '), env, directory)
    assert.deepEqual([status, stdout], [2, ''])
    const names = [...stderr.matchAll(/^plant-store: PLANTS_(\w+)/gm)].map(([, name]) => name)
    assert.equal(names.join(' '), named)
    assert.ok(stderr.includes(told), stderr)
    assert.deepEqual(readdirSync(directory), [])
  })

test('serve: what the README pastes starts a service, signs a token and uses it', async (t) => {
  const home = await temporaryDirectory()
  const readme = readFileSync(join(ROOT, 'README.md'), 'utf8')
  const [, section = ''] = /\n## Deploy\n(.*?)\n## /s.exec(readme) ?? []
  const blocks = [...section.matchAll(/```sh\n(.*?)```/gs)].map(([, text]) => text)
  const [lines = '', first = ''] = blocks
  assert.equal(lines.trim().split('\n').length, 5)
  const script = lines.replace('make build\n', '').replace(/^node /m, 'exec node ')
  // The line sets the directory itself.
  const { PLANTS_DATA: _, ...variables } = onSocket(home)
  const program = { prefix: ['sh', '-ec', script], cwd: ROOT }
  const server = launch({ ...variables, HOME: home }, program)
  t.after(() => server.child.kill('SIGKILL'))
  await server.listening
  assert.equal(statSync(`${home}/plants.secret`).mode & 0o777, 0o600)
  // In a second shell, as a user with nothing but node and curl.
  const created = await pasted(first, { HOME: home }, `--unix-socket ${home}/plants.sock`)
  assert.deepEqual(created, [200, { name: 'Monstera' }])
  assert.equal(await server.kill('SIGTERM'), 0)
  assert.ok(existsSync(`${home}/plants/plants.sqlite`))
})

test('serve --dev: its curl lines work, and kill -9 loses no plant and no key', async (t) => {
  const folder = await temporaryDirectory()
  const directory = join(folder, 'data')
  const first = await startProcess(t, directory, {}, ['serve', '--dev'])
  const lines = await curlLines(first.output)
  assert.equal(lines.length, 2)
  assert.ok(first.output().includes(`\nPlants and key are in ${directory}.\n`))
  const plants = [{ name: 'Monstera', tag: 'indoor' }]
  assert.deepEqual(await pasted(lines[0]), [200, plants[0]])
  assert.deepEqual(await pasted(lines[1]), [200, plants])
  assert.equal(statSync(join(directory, 'dev.key')).mode & 0o777, 0o600)

  // The next start is on a socket, and wants other claims.
  const socket = join(folder, 'plants socket')
  const env = {
    PLANTS_DATA: directory,
    PLANTS_LISTEN: `unix:${socket}`,
    PLANTS_OWNER_CLAIM: 'tenant',
    PLANTS_AUDIENCE_CLAIM: 'client_id',
    PLANTS_SCOPE_CLAIM: 'roles',
    PLANTS_READ_SCOPE: 'plants:read',
    PLANTS_WRITE_SCOPE: 'plants:write',
  }
  const reader = async (sub: string) => {
    const args = ['token', '--sub', sub, '--ttl', '60', '--scope', 'plants:read']
    const { status, stdout } = await command(args, env)
    assert.equal(status, 0)
    return { token: stdout.trim() }
  }
  const old = await reader('alice')
  await first.kill('SIGKILL')
  const second = await startProcess(t, directory, env, ['serve', '--dev'])
  assert.deepEqual((await call(socket, old)).json(), plants)
  assert.deepEqual((await call(socket, await reader('bob'))).json(), [])
  assert.equal((await post(socket, { id: 2, name: 'Fern' }, old)).status, 403)
  for (const line of await curlLines(second.output)) assert.equal((await pasted(line))[0], 200)
  assert.equal(await second.kill('SIGTERM'), 0)
})

test('token: without a development key, says what to do', async () => {
  const env = { PLANTS_DATA: await temporaryDirectory() }
  const { status, stderr } = await command(['token', '--sub', 'bob'], env)
  assert.equal(status, 1)
  const only = '"token" signs with the development key only'
  assert.ok(stderr.startsWith(`plant-store: ${only}, and there is none in ${env.PLANTS_DATA}: `))
  assert.match(stderr, /get tokens from your issuer.*"plant-store serve --dev" makes/)
})

test('serve: a port in use ends with status 1 and says why', async (t) => {
  const where = (await serving(t, () => {})).replace('http://', '')
  const directory = join(await temporaryDirectory(), 'data')
  for (const name of ['PLANTS_LISTEN', 'PLANTS_ADMIN_LISTEN']) {
    const env = serviceEnvironment(directory, { [name]: where })
    const { status, stderr } = await command(['serve'], env)
    const why = 'something listens there already; stop it or choose another address'
    const line = `plant-store: ${name}: cannot listen on ${where}: ${why}\n`
    assert.deepEqual([status, stderr], [1, line])
  }
})

test('check: counts plants, and names damage', async (t) => {
  const directory = join(await temporaryDirectory(), 'data')
  const server = await startService(t, { data: directory })
  for (let id = 1; id <= 3; id++) await post(server.port, { id, name: 'Fern' })
  const running = await command(['check'], { PLANTS_DATA: directory })
  assert.deepEqual([running.status, running.stderr], [0, ''])
  assert.match(running.stdout, /is sound: 3 plants in a snapshot and 1 journal, up to write 3/)
  const left = await directoryOf(filesLeftByKill(directory))
  const journal = join(left, 'journal-00000001.log')
  const bytes = readFileSync(journal)
  bytes[100] = (bytes[100] ?? 0) ^ 1
  writeFileSync(journal, bytes)
  const broken = /journal-00000001\.log is damaged at byte \d+: .*; move all files .*, and import/
  for (const name of ['check', 'serve']) {
    const { status, stderr } = await command([name], serviceEnvironment(left))
    assert.equal(status, 1)
    assert.match(stderr, broken)
  }
  assert.deepEqual(readFileSync(journal), bytes)
})

test('export -: a pipe gets a whole file, also while a service runs', async (t) => {
  const directory = await temporaryDirectory()
  const [data, file] = [join(directory, 'data'), join(directory, 'plants.db')]
  const server = await startService(t, { data })
  const name = 'x'.repeat(500_000)
  for (const id of [1, 2]) assert.equal((await post(server.port, { id, name })).status, 200)
  // Nothing else of it is left to be read than stderr.
  const shell = async (script: string) => {
    const program = { args: [], prefix: ['sh', '-c', script], cwd: directory }
    const { exited, output } = launch({ PLANTS_DATA: data }, program)
    return { status: await exited, stderr: output() }
  }
  // A shell's own status is that of the last command.
  const exported = '{ "$0" "$1" export -; echo $? > status; }'
  const piped = await shell(`${exported} | cat > plants.db; exit $(cat status)`)
  assert.deepEqual(piped, { status: 0, stderr: '2 plants written to standard output\n' })
  const other = { PLANTS_DATA: join(directory, 'other'), PLANTS_MAX_OWNER_BYTES: '1' }
  const imported = await command(['import', file], other)
  assert.match(imported.stdout, /^2 plants read from .*; all of them are in the store/)

  const left = await shell(`${exported} | head -c 100 > /dev/null; exit $(cat status)`)
  const what = 'the reader of standard output has left, and what it has is no whole file'
  assert.deepEqual(left, { status: 1, stderr: `plant-store: ${what}\n` })
  if (!THOROUGH) return
  assert.deepEqual(await shell('exec "$0" "$1" export - > redirected.db'), piped)
  assert.deepEqual(readFileSync(join(directory, 'redirected.db')), readFileSync(file))
  const full = await shell('exec "$0" "$1" export - > /dev/full')
  assert.equal(full.status, 1)
  assert.match(full.stderr, /^plant-store: ENOSPC/)
})

const MISSING = 'script is missing (Debian: apt-get install bsdutils)'
const NO_SCRIPT = skipWithout(MISSING, 'script', '--version')

test('terminal: export - is refused, serve --dev logs lines', { skip: NO_SCRIPT }, async (t) => {
  const directory = await temporaryDirectory()
  const onTerminal = (args: string) => {
    const line = `exec "${process.execPath}" "${MAIN}" ${args}`
    const child = spawn('script', ['-qefc', line, 'log'], {
      cwd: directory,
      env: environment(onSocket(directory)),
      // Without an open input, script would not go on.
      stdio: ['pipe', 'ignore', 'ignore'],
    })
    t.after(() => child.kill('SIGKILL'))
    const written = (): string => readFileSync(join(directory, 'log'), 'utf8')
    return { child, exited: once(child, 'exit'), written }
  }
  const refused = onTerminal('export -')
  assert.deepEqual(await refused.exited, [2, null])
  assert.match(refused.written(), /export - writes a database, and standard output is a terminal/)

  const server = onTerminal('serve --dev')
  const socket = join(directory, 'plants.sock')
  await until('it listens', () => existsSync(socket) && /listening version=/.test(server.written()))
  assert.equal((await call(socket, { token: undefined })).status, 401)
  const logged = /^\d\d:\d\d:\d\d GET {5}\/plants 401 \d+\.\d ms/m
  await until('it logs', () => logged.test(server.written()))
  // The terminal makes SIGINT of it.
  server.child.stdin.write('\x03')
  assert.deepEqual(await server.exited, [0, null])
  assert.match(server.written(), /\d\d:\d\d:\d\d stopping signal=SIGINT\r$/m)
})

const TABLE = 'CREATE TABLE plants (owner, id, name, tag);'

test('cli: what comes from outside is escaped in every message', async () => {
  const directory = await temporaryDirectory()
  const own = HOSTILE.replace('\ud83c', '')
  const shown = HOSTILE_ESCAPED.replace('\\ud83c', '')
  const inQuotes = shown.replace('\\u000a', '\\n')
  const [data, file] = [join(directory, `data ${own}`), join(directory, `file ${own}`)]
  const says = async (what: string, env: Readonly<Record<string, string>>, ...args: string[]) => {
    const { stdout, stderr } = await command(args, { PLANTS_DATA: data, ...env })
    assert.doesNotMatch(stdout + stderr, UNSAFE, args[0])
    assert.ok((stdout + stderr).includes(what), stdout + stderr)
  }
  const write = async (sql: string) => writeFileSync(file, await sqliteFile(TABLE + sql))
  await says(`no store in ${directory}/data ${shown}`, {}, 'check')
  await write(`INSERT INTO plants VALUES ('alice', 1, 'Fern', NULL), ('${own}', 2, NULL, NULL)`)
  await says(`owner "${inQuotes}", id 2: name`, {}, 'import', file)
  await write(`INSERT INTO plants VALUES ('alice', 1, 'Fern', NULL)`)
  await says(`1 plant read from ${directory}/file ${shown}`, {}, 'import', file)
  await write(`CREATE TABLE "${own}" (a);
    PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'x' WHERE name <> 'plants'`)
  await says(`malformed database schema (${shown}`, {}, 'import', file)
  await says(`data ${shown} is sound`, {}, 'check')
  await says(`written to ${directory}/new ${shown}`, {}, 'export', join(directory, `new ${own}`))
  await says(`PLANTS_${shown} is not known`, { [`PLANTS_${own}`]: 'x' }, 'config')
  await says(inQuotes, serviceEnvironment(data, { PLANTS_AUDIENCE: own }), 'config')
  const set = join(directory, 'jwks.json')
  writeFileSync(set, JSON.stringify({ keys: [{ kty: 'oct', kid: own }] }))
  const keys = serviceEnvironment(data, { PLANTS_JWKS_FILE: set })
  await says(`key "${inQuotes}" is symmetric or private`, keys, 'config')
  await says(`no command "${inQuotes}"`, {}, own)
})

async function curlLines(output: () => string): Promise<string[]> {
  const lines = (): string[] => output().match(/^curl .*$/gm) ?? []
  await until('both curl lines are there', () => lines().length >= 2)
  return lines()
}

/** Runs a line of curl as when a user pastes it. Returns the status and the body. */
async function pasted(line = '', env: Environment = {}, options = '') {
  const script = `curl() { command curl -sS ${options} "$@"; }\n${line}`
  const own = { env: environment(env) }
  const { stdout } = await promisify(execFile)('sh', ['-ec', script], own)
  const [, status, body = ''] = /^HTTP\/1.1 (\d+) [^]*?\r\n\r\n(.*)$/.exec(stdout) ?? []
  return [Number(status), JSON.parse(body) as unknown]
}
