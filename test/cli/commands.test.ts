import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import { COMMANDS, type Command, isCommand, OPTIONS } from '../../dist/cli/commands.js'
import { run as completion } from '../../dist/cli/completion.js'
import { describeConfig } from '../../dist/cli/config.js'
import { HELP, helpOf } from '../../dist/cli/help.js'
import { VARIABLES } from '../../dist/settings/table.js'
import { ConfigError } from '../../dist/errors.js'
import { temporaryDirectory } from '../support/service.ts'

const NAMES = Object.keys(COMMANDS).filter(isCommand)
const SECRET = 'hidden-'.repeat(8)
const MINIMUM = { PLANTS_ISSUER: 'https://issuer.test', PLANTS_AUDIENCE: 'plants' }

test('help: each command says what it does, its options, statuses and an example', () => {
  for (const name of NAMES) {
    const { options = [], argument }: Command = COMMANDS[name]
    const { meaning, example } = HELP[name]
    const text = helpOf(name)
    const [usage = ''] = text.split('\n')
    assert.ok(usage.startsWith('usage: plant-store '), usage)
    const explained = text.slice(usage.length)
    for (const option of options) {
      assert.match(usage, new RegExp(`--${option}\\b`))
      assert.match(explained, new RegExp(`--${option}\\b`))
    }
    if (argument === 'FILE') assert.match(usage, /FILE/)
    assert.ok(text.includes(meaning))
    for (const status of [0, 1, 2]) assert.match(text, new RegExp(`^  ${status}  \\S`, 'm'))
    assert.ok(text.endsWith(`Example:\n  ${example}`))
    assert.ok(
      text.split('\n').every((line) => line.length <= 110),
      text,
    )
  }
})

/** The columns of `plant-store config`. */
function settings(env: Readonly<Record<string, string>>): Map<string, readonly [string, string]> {
  const rows = describeConfig(env).split('\n')
  return new Map(
    rows.map((row) => {
      const [, name = '', source = '', value = ''] = /^(\S+) +(\S+)(?:  +(.*))?$/.exec(row) ?? []
      return [name, [source, value]]
    }),
  )
}

test('config: every setting has its source and its value', () => {
  const found = settings({
    ...MINIMUM,
    PLANTS_AUDIENCE: 'two words',
    PLANTS_LISTEN: '[::1]:80',
    PLANTS_ADMIN_LISTEN: 'off',
    PLANTS_DATA: '/data//plants',
    PLANTS_JWT_SECRET: '',
  })
  assert.deepEqual([...found.keys()], [...VARIABLES.map(({ name }) => name), 'keys'])
  const expected = {
    PLANTS_LISTEN: ['variable', '[::1]:80'],
    PLANTS_ADMIN_LISTEN: ['variable', 'off'],
    PLANTS_DATA: ['variable', '/data/plants'],
    PLANTS_MAX_DATA_BYTES: ['default', '268435456'],
    PLANTS_ETCD_PREFIX: ['unset', ''],
    PLANTS_AUDIENCE: ['variable', '"two words"'],
    PLANTS_JWT_SECRET: ['unset', ''],
    PLANTS_RATE_LIMIT: ['unset', ''],
    PLANTS_DRAIN_DELAY: ['default', '0'],
    keys: ['discovery', 'https://issuer.test'],
  }
  for (const [name, row] of Object.entries(expected)) assert.deepEqual(found.get(name), row, name)
})

test('config: secrets and what files hold are left out, paths are not', async () => {
  const file = join(await temporaryDirectory(), 'secret')
  writeFileSync(file, SECRET)
  const etcd = {
    PLANTS_ETCD_ENDPOINTS: 'http://127.0.0.1:1, http://127.0.0.1:2/',
    PLANTS_ETCD_USERNAME: 'gardener',
    PLANTS_ETCD_PASSWORD_FILE: file,
  }
  const secret = { ...MINIMUM, ...etcd, PLANTS_JWT_SECRET: SECRET }
  const inFile = { ...MINIMUM, PLANTS_JWT_SECRET_FILE: file }
  const url = { ...MINIMUM, PLANTS_JWKS_URL: `https://issuer.test/keys?key=${SECRET}` }
  for (const env of [secret, inFile, url])
    assert.doesNotMatch(describeConfig(env), /hidden/, JSON.stringify(env))
  const found = settings(secret)
  assert.deepEqual(found.get('PLANTS_ETCD_ENDPOINTS')?.[1], 'http://127.0.0.1:1,http://127.0.0.1:2')
  assert.deepEqual(found.get('PLANTS_ETCD_PASSWORD_FILE'), ['variable', file])
  assert.deepEqual(found.get('PLANTS_ETCD_PREFIX'), ['default', 'plants/'])
  assert.deepEqual(found.get('PLANTS_JWT_SECRET'), ['variable', '"(left out)"'])
  assert.deepEqual(settings(inFile).get('PLANTS_JWT_SECRET_FILE'), ['variable', file])
  assert.deepEqual(settings(url).get('PLANTS_JWKS_URL')?.[1], 'https://issuer.test/keys')
})

test('config: a wrong configuration is every problem at once', () => {
  const wrong = (error: unknown): boolean =>
    error instanceof ConfigError &&
    error.problems.length === 4 &&
    /"serve --dev" needs no setting$/.test(error.message)
  assert.throws(() => describeConfig({ PLANTS_LISTEN: 'x' }), wrong)
})

const folder = await temporaryDirectory()
mkdirSync(join(folder, 'a folder'))
writeFileSync(join(folder, 'a file'), '')
const SHELLS = ['bash', 'zsh', 'fish']
for (const shell of SHELLS) writeFileSync(join(folder, shell), completion(shell))

/** Why a shell cannot be tested. */
function missing(shell: string): string | false {
  const isThere = spawnSync(shell, ['-c', 'exit 0']).status === 0
  const why = !isThere && `SKIPPED: ${shell} is missing (Debian: apt-get install ${shell})`
  if (why !== false) console.log(why)
  return why
}

/** Words that complete a command line; the last one is the unfinished word. */
type Complete = (...words: readonly string[]) => readonly string[]

/** The words of an answer, in order, with the names of options last. */
const linesOf = (text: string): readonly string[] =>
  text
    .split('\n')
    .filter((line) => line !== '')
    .toSorted()

function assertCompletes(complete: Complete): void {
  const commands = NAMES.toSorted()
  assert.deepEqual(
    complete('').filter((word) => !word.startsWith('-')),
    commands,
  )
  assert.deepEqual(complete('co'), ['completion', 'config'])
  assert.deepEqual(complete('--d'), ['--dev'])
  assert.deepEqual(complete('token', '--s'), ['--scope', '--sub'])
  assert.deepEqual(complete('check', '--'), ['--help'])
  assert.deepEqual(
    complete('export', 'a').map((name) => name.replace(/\/$/, '')),
    ['a file', 'a folder'],
  )
  assert.deepEqual(complete('completion', 'f'), ['fish'])
}

test('completion: each script has every command and option, and no other', () => {
  const options = { bash: /--([a-z]+)/g, zsh: /--([a-z]+)/g, fish: /-l ([a-z]+)/g }
  const commands = {
    bash: /(?<=''[)] words='(?:[a-z]+ )*)([a-z]+) /g,
    zsh: /'([a-z]+):/g,
    fish: /-a ([a-z]+)/g,
  }
  const found = (shell: string, pattern: RegExp) =>
    new Set([...completion(shell).matchAll(pattern)].map(([, name]) => name))
  for (const [shell, pattern] of Object.entries(options))
    assert.deepEqual(found(shell, pattern), new Set(Object.keys(OPTIONS)), shell)
  for (const [shell, pattern] of Object.entries(commands))
    assert.deepEqual(found(shell, pattern), new Set(NAMES), shell)
})

test('completion: bash completes commands, options and files', { skip: missing('bash') }, () => {
  const script = `source ./bash; COMP_WORDS=(plant-store "$@"); COMP_CWORD=$#; _plant_store
    printf '%s\\n' "\${COMPREPLY[@]}"`
  assertCompletes((...words) => {
    const args = ['--norc', '-c', script, 'bash', ...words]
    return linesOf(execFileSync('bash', args, { cwd: folder, encoding: 'utf8' }))
  })
  const bound = spawnSync('bash', ['-c', 'source ./bash; complete -p plant-store'], { cwd: folder })
  assert.equal(String(bound.stdout), 'complete -F _plant_store plant-store\n')
})

test('completion: fish completes commands, options and files', { skip: missing('fish') }, () => {
  const env = { PATH: process.env['PATH'], HOME: folder }
  assertCompletes((...words) => {
    const line = `plant-store ${words.join(' ')}`
    const args = ['-c', 'source ./fish; complete -C $argv[1]', line]
    const text = execFileSync('fish', args, { cwd: folder, encoding: 'utf8', env })
    return linesOf(text.replace(/\t.*$/gm, ''))
  })
})

/** Types a line and a tab in zsh on a terminal, until the terminal shows the second argument. */
const ZSH = `zmodload zsh/zpty
await() {
  local shown chunk
  repeat 600; do
    while zpty -r -t shell chunk; do shown+=\${chunk//[^[:print:]]/}; done
    [[ $shown != *"$1"* ]] || return 0
    sleep 0.05
  done
  print -r -- "instead of $1: $shown"
  exit 1
}
zpty -b shell 'zsh -f -i'
zpty -w shell 'PS1=; autoload -Uz compinit; compinit -u -d ./dump; . ./zsh; print "rea""dy"'
await ready
zpty -w -n shell "$1"$'\\t'
await "$2"`

test('completion: zsh completes commands, options and files', { skip: missing('zsh') }, () => {
  const env = { PATH: process.env['PATH'], HOME: folder }
  for (const [typed, shown] of [
    ['openap', 'openapi'],
    ['--d', '--dev'],
    ['token --tt', 'token --ttl'],
    ['export a\\ fo', 'export a\\ folder'],
    ['completion fi', 'completion fish'],
  ]) {
    const args = ['-f', '-c', ZSH, 'zsh', `plant-store ${typed}`, `plant-store ${shown}`]
    const { status, stdout } = spawnSync('zsh', args, { cwd: folder, encoding: 'utf8', env })
    assert.equal(status, 0, stdout)
  }
})
