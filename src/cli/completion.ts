import { type Command, COMMANDS, type OptionName, OPTIONS, type SHELLS } from './commands.ts'

/** What can follow the name of a command. */
interface Completed {
  readonly name: string
  readonly meaning: string
  readonly options: readonly OptionName[]
  /** Words that its argument may be. Undefined: any file, if it takes one. */
  readonly words: readonly string[] | undefined
  readonly takesFile: boolean
}

/** Options that need no command. */
const ALONE = ['dev', 'help', 'version'] as const satisfies readonly OptionName[]

const ALL: readonly Completed[] = Object.entries<Command>(COMMANDS).map(
  ([name, { meaning, options = [], argument }]) => {
    const words = argument?.words
    const takesFile = argument !== undefined && words === undefined
    return { name, meaning, options: [...options, 'help'], words, takesFile }
  },
)

type Shell = (typeof SHELLS)[number]
const SCRIPTS: Readonly<Record<string, () => string>> = { bash, zsh, fish } satisfies Readonly<
  Record<Shell, () => string>
>

/** A script that completes commands, options and arguments in a shell. */
export function completion(shell: string): string | undefined {
  return SCRIPTS[shell]?.()
}

/** For bash 3.2 and later: macOS has no other. */
function bash(): string {
  const flags = (options: readonly OptionName[]): string[] => options.map((name) => `--${name}`)
  const first = [...ALL.map(({ name }) => name), ...flags(ALONE)].join(' ')
  const cases = ALL.map(({ name, options, words = [], takesFile }) => {
    const files = takesFile ? '; files=yes' : ''
    return `    ${name}) words='${[...words, ...flags(options)].join(' ')}'${files} ;;`
  })
  return `_plant_store() {
  local current=\${COMP_WORDS[COMP_CWORD]} command=\${COMP_WORDS[1]} words= files= IFS=$'\\n'
  [ "$COMP_CWORD" -gt 1 ] || command=
  case $command in
    '') words='${first}' ;;
${cases.join('\n')}
  esac
  COMPREPLY=($(IFS=' '; compgen -W "$words" -- "$current"))
  [ -z "$files" ] || COMPREPLY+=($(compgen -f -- "$current"))
  [ -z "$files" ] || compopt -o filenames 2>/dev/null
}
complete -F _plant_store plant-store`
}

function zsh(): string {
  const flag = (name: OptionName): string => {
    const { meaning, ...rest } = OPTIONS[name]
    const value = 'value' in rest ? `:${rest.value}: ` : ''
    return quoted(`--${name}[${escaped(meaning)}]${value}`)
  }
  const cases = ALL.map(({ name, options, words, takesFile }) => {
    const argument = words ? [`'1:: :(${words.join(' ')})'`] : takesFile ? ["'1:: :_files'"] : []
    return `    ${name}) _arguments ${[...options.map(flag), ...argument].join(' ')} ;;`
  })
  const commands = ALL.map(({ name, meaning }) => quoted(`${name}:${escaped(meaning)}`))
  return `#compdef plant-store
_plant_store() {
  if (( CURRENT == 2 )); then
    local -a commands=(${commands.join(' ')})
    _describe command commands
    _arguments ${ALONE.map(flag).join(' ')}
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
${cases.join('\n')}
  esac
}
if [[ $funcstack[1] == _plant_store ]]; then _plant_store "$@"
else compdef _plant_store plant-store; fi`
}

function fish(): string {
  const line = (when: string, rest: string): string => {
    return `complete -c plant-store -n ${quoted(when)} ${rest}`
  }
  const flag = (name: OptionName): string => {
    return `-l ${name} ${'value' in OPTIONS[name] ? '-x ' : ''}-d ${quoted(OPTIONS[name].meaning)}`
  }
  const first = '__fish_use_subcommand'
  const lines = ALL.flatMap(({ name, meaning, options, words, takesFile }) => {
    const chosen = `__fish_seen_subcommand_from ${name}`
    return [
      line(first, `-a ${name} -d ${quoted(meaning)}`),
      ...options.map((option) => line(chosen, flag(option))),
      ...(words ? [line(chosen, `-a ${quoted(words.join(' '))}`)] : []),
      ...(takesFile ? [line(chosen, '-F')] : []),
    ]
  })
  const alone = ALONE.map((name) => line(first, flag(name)))
  return ['complete -c plant-store -f', ...alone, ...lines].join('\n')
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}

/** zsh ends a name at a colon, and a description at a bracket. */
function escaped(text: string): string {
  return text.replace(/[\\:[\]]/g, '\\$&')
}
