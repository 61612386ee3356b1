import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, readFile, symlink, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { test } from 'node:test'
import { readOptions } from '../../dist/settings/program.js'
import { VARIABLES } from '../../dist/settings/table.js'
import { ConfigError } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { projectRelease, ROOT } from '../support/release.ts'
import { LONG, THOROUGH } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { until } from '../support/time.ts'

/** The package must not read it: with these variables a service refuses to start. */
const ENVIRONMENT = {
  PATH: process.env['PATH'] ?? '',
  PLANTS_LISTEN: 'nonsense',
  PLANTS_UNKNOWN: 'x',
  PLANTS_LOG_LEVEL: 'debug',
  // The compiler ends before collecting garbage is worth its time.
  GOGC: 'off',
}
/** The strictest checks. A program on a server has no DOM. */
const STRICT =
  '--singleThreaded --strict --exactOptionalPropertyTypes --noUncheckedIndexedAccess ' +
  '--skipLibCheck false --target es2023 --lib es2023 --types node app.ts'

const project = join(await temporaryDirectory(), 'project')
const modules = join(ROOT, 'node_modules')
const TSC = join(modules, '.bin/tsc')
const tarball = THOROUGH ? (await projectRelease()).package : ''
// The two dependencies come from this project's folder: no registry is asked.
const dependencies = {
  'plant-store': `file:${tarball}`,
  jose: `file:${join(modules, 'jose')}`,
  'sql.js': `file:${join(modules, 'sql.js')}`,
}

async function install(): Promise<void> {
  await mkdir(project)
  await writeFile(join(project, 'package.json'), JSON.stringify({ private: true, dependencies }))
  const offline = '--offline --ignore-scripts --no-audit --no-fund --no-install-links'
  start('npm', `install ${offline}`, process.env)
  await mkdir(join(project, 'node_modules/@types'))
  await symlink(join(modules, '@types/node'), join(project, 'node_modules/@types/node'))
  await cp(join(ROOT, 'test/fixtures/embedding'), project, { recursive: true })
}
if (THOROUGH) await install()
const INSTALLED = { skip: LONG }

/** Runs a program that must succeed. Returns what it prints. */
function start(program: string, args: string, env: NodeJS.ProcessEnv = ENVIRONMENT): string {
  const options = { cwd: project, env, encoding: 'utf8' } as const
  const { status, stdout, stderr } = spawnSync(program, args.split(' '), options)
  assert.equal(status, 0, `${program} ${args}: ${stdout}${stderr}`)
  return stdout
}

test('package: npx plant-store serve --dev serves, and Ctrl-C stops it', INSTALLED, async (t) => {
  const readme = await readFile(join(ROOT, 'README.md'), 'utf8')
  const [line, file] =
    /^npx --yes -p \.\/release\/(\S+) plant-store serve --dev$/m.exec(readme) ?? []
  assert.equal(file, basename(tarball), `README.md: ${line}`)
  // The package is installed: a registry is not asked for what it needs.
  const child = spawn('npx', ['--offline', 'plant-store', 'serve', '--dev'], {
    cwd: project,
    env: {
      PATH: process.env['PATH'],
      PLANTS_DATA: 'data',
      PLANTS_LISTEN: 'unix:plants.sock',
      PLANTS_ADMIN_LISTEN: 'off',
    },
    // Its own process group: a terminal sends the signal to all of a group.
    detached: true,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  const closed = once(child, 'close')
  const signal = (name: NodeJS.Signals): boolean => process.kill(-(child.pid ?? 0), name)
  t.after(() => child.exitCode === null && child.signalCode === null && signal('SIGKILL'))
  let log = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => (log += text))
  await until('it listens', () => log.includes('"message":"listening"'))
  assert.equal((await call(join(project, 'plants.sock'), { token: undefined })).status, 401)
  signal('SIGINT')
  await closed
  assert.match(log, /"message":"stopped"/)
})

test('package: from TypeScript it compiles with the strictest checks', INSTALLED, async () => {
  start(TSC, `${STRICT} --module esnext --moduleResolution bundler --noEmit`)
  const manifest = { private: true, type: 'module', dependencies }
  await writeFile(join(project, 'package.json'), JSON.stringify(manifest))
  start(TSC, `${STRICT} --module nodenext --moduleResolution nodenext --outDir out`)
})

test('package: no type that it publishes has a form that TypeScript 5.0 cannot read', async () => {
  const dist = join(ROOT, 'dist')
  const files = new Set([join(dist, 'index.d.ts')])
  for (const file of files) {
    const text = await readFile(file, 'utf8')
    assert.doesNotMatch(text.replace(/\/\*[^]*?\*\//g, ''), /\b(Buffer|Uint8Array)</, file)
    for (const [, target = ''] of text.matchAll(/(?:from '|import\(")(\.[^'"]*)\.[jt]s/g))
      files.add(join(dirname(file), `${target}.d.ts`))
  }
  assert.ok(files.size > 10, `${files.size}`)
})

const OLDEST = 'package: it compiles with the oldest TypeScript that the document names'

test(OLDEST, { skip: LONG }, async (t) => {
  const guide = await readFile(join(ROOT, 'src/index.md'), 'utf8')
  const [, version = assert.fail()] = /TypeScript (\d+\.\d+) or later/.exec(guide) ?? []
  const oldest = ['--yes', '--package', `typescript@${version}`, 'tsc']
  const missing = `SKIPPED: typescript@${version} cannot be installed`
  if (spawnSync('npx', [...oldest, '--version']).status !== 0) {
    console.log(missing)
    return t.skip(missing)
  }
  const strict = STRICT.replace('--singleThreaded ', '').replace('es2023', 'es2022')
  const module = '--module esnext --moduleResolution bundler --noEmit'
  start('npx', `${oldest.join(' ')} ${strict} ${module}`, process.env)
})

test('package: it runs from TypeScript, JavaScript and CommonJS, and ends', INSTALLED, async () => {
  const both = "import('./out/app.js').then(() => import('./app.mjs'))"
  await writeFile(join(project, 'all.cjs'), `${both}.then(() => require('./app.cjs'))`)
  const said = start(process.execPath, 'all.cjs')
  assert.equal(said.match(/^done$/gm)?.length, 3, said)
})

test('package: an editor can show bounds and default of every option', async () => {
  const types = join(ROOT, 'dist/settings/options.d.ts')
  const text = await readFile(types, 'utf8')
  const wrong = Object.fromEntries(VARIABLES.map(({ option }) => [option, NaN]))
  const problems = (error: unknown): boolean => {
    assert.ok(error instanceof ConfigError)
    for (const { option, fallback } of VARIABLES) {
      const before = new RegExp(`/\\*\\*((?:(?!\\*/)[^])*)\\*/\\s*readonly ${option}\\b`)
      const [, comment = ''] = before.exec(text) ?? []
      assert.match(comment, /Required: |@defaultValue/, option)
      assert.ok(comment.includes(fallback), `${fallback}: ${comment}`)
      const problem = error.problems.find((each) => each.startsWith(`${option} `))
      const [bounds = ''] = /from \d+ to \d+/.exec(problem ?? assert.fail(option)) ?? []
      assert.ok(comment.replace(/\n +\*/g, '').includes(bounds), `${bounds}: ${comment}`)
    }
    return true
  }
  assert.throws(() => readOptions(wrong), problems)
})
